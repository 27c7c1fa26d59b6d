//! Evaluation: how much work what tenants write may be.
//!
//! Templates and schemas are short and may ask for any amount of work, on threads that others
//! wait for. It is counted and not timed, so the same document is refused on every machine.

/// Of the templates of one step together, in bytes read and copied.
pub mod templates {
    /// All together, nearly: some tens of milliseconds of work.
    pub const WORK_MAX: usize = 32 << 20;
    /// What is done on the thread that asks for it.
    pub const WORK_AT_ONCE: usize = 256 << 10;
    /// What an operation costs whatever it works on. The texts of concatenations are only
    /// known in part.
    pub const OPERATION: usize = 8 << 10;
    /// What a template with a loop costs: its instructions are counted by themselves, and
    /// there may be many of them.
    pub const LOOP: usize = 512 << 10;
    /// What an element of a list or map costs.
    pub const ELEMENT: usize = 32;
    /// Instructions of one template: a loop over a thousand items with a few expressions each.
    pub const INSTRUCTIONS_MAX: u64 = 50_000;
    pub const RECURSION_MAX: usize = 64;
    /// Bytes of a rendered text, and of a rendered value as JSON.
    pub const OUTPUT_BYTES_MAX: usize = 1 << 20;
    /// Bytes of a text that a template builds from others on the way.
    pub const TEXT_BYTES_MAX: usize = 256 << 10;
    /// Bytes of one template.
    pub const SOURCE_BYTES_MAX: usize = 256 << 10;
}

/// Of an input schema and the payloads that are checked against it.
pub mod schemas {
    /// Looks at a part of a payload, all together.
    pub const STEPS_MAX: u64 = 500_000;
    /// Those that are taken on the thread that asks for them.
    pub const STEPS_AT_ONCE: u64 = 5_000;
    /// Steps for a byte of text, where the schema has patterns that read it.
    pub const STEPS_PER_BYTE: u64 = 4;
    /// Bytes that a pattern may have when it is compiled, and all patterns of a schema together.
    pub const PATTERN_BYTES_MAX: usize = 1 << 20;
    pub const PATTERNS_BYTES_MAX: usize = 8 << 20;
    /// Patterns in a schema.
    pub const PATTERNS_MAX: usize = 200;
    /// Patterns of one `patternProperties`: each is compared with each name.
    pub const NAME_PATTERNS_MAX: usize = 20;
}
