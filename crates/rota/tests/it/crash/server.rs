//! A PostgreSQL server of a test's own, that it may kill.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use crate::node::Place;

/// A private server, in memory so that a test of many commits waits for none of
/// the machine's other work. It goes with this value.
pub struct Server {
    place: Place,
    pub url: String,
}

impl Server {
    pub fn start() -> Self {
        let place = Place::in_memory();
        let state = place.path("services");
        std::fs::create_dir_all(&state).unwrap();
        // Binaries that were fetched for the other server serve this one too.
        let fetched = services().join("postgres-binaries.place");
        if fetched.exists() {
            std::fs::copy(fetched, state.join("postgres-binaries.place")).unwrap();
        }
        let mut server = Self { place, url: String::new() };
        server.script("up");
        let said = server.script("env");
        let url = said.lines().find_map(|line| line.strip_prefix("export ROTA_TEST_POSTGRES="));
        url.unwrap().clone_into(&mut server.url);
        server
    }

    /// Kills it, and starts it again on what it left.
    pub fn crash(&self) {
        self.script("crash");
    }

    fn script(&self, command: &str) -> String {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/services");
        let output = Command::new(script).arg(command).env("ROTA_SERVICES_DIR", self.place.path("services")).output();
        let output = output.unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.script("down");
    }
}

fn services() -> PathBuf {
    let ours = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/services");
    std::env::var_os("ROTA_SERVICES_DIR").map_or_else(ours, PathBuf::from)
}
