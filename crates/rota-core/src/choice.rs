//! Enums that are one word each, spelled the same everywhere.
//!
//! Documents, columns, flags and messages all use [`choices!`]'s spelling, so
//! that a word never has to be translated between two of them.

/// Declares an enum with its words: `as_str`, `FromStr`, `Display` and serde.
macro_rules! choices {
    ($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident = $text:literal),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
        pub enum $name { $($(#[$variant_doc])* #[serde(rename = $text)] $variant),* }

        impl $name {
            /// All of them, as listed.
            pub const ALL: [Self; [$($text),*].len()] = [$(Self::$variant),*];

            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $text),* }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.as_str())
            }
        }

        impl std::str::FromStr for $name {
            type Err = String;

            fn from_str(text: &str) -> Result<Self, String> {
                Self::ALL.into_iter().find(|choice| choice.as_str() == text).ok_or_else(|| {
                    let known: Vec<_> = Self::ALL.iter().map(|choice| choice.as_str()).collect();
                    format!("`{}` is not one of {}", text.escape_debug(), known.join(", "))
                })
            }
        }
    };
}

pub(crate) use choices;
