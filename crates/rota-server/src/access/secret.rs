//! Secrets: drawn from the system, never from a seed.

use rota_core::access::{Secret, SecretKind};

/// 32 bytes that nobody can guess.
///
/// A system that cannot give any is one on which nothing can be kept secret, so
/// this panics rather than going on.
pub fn draw() -> [u8; 32] {
    let mut bytes = [0; 32];
    match getrandom::fill(&mut bytes) {
        Ok(()) => bytes,
        Err(error) => panic!("the system provides no random bytes: {error}"),
    }
}

/// A new secret of this kind.
pub fn new_secret(kind: SecretKind) -> Secret {
    Secret::new(kind, draw())
}
