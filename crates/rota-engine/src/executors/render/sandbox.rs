//! The sandbox: the template engine with everything unbounded taken away.
//!
//! Fuel bounds the instructions, but one instruction can be as large as the
//! engine allows: `[0] * 100000000` is one, and so is each doubling of a text.
//! So before a template is compiled its operators are hemmed in: `*` takes
//! numbers only, `~` and `+` refuse a text beyond a bound on their left, and they and
//! comparisons are charged to the [`budget`]. Filters are an explicit list; those that
//! grow their input are ours. There are no macros, includes or blocks, and nothing is
//! loaded.
//!
//! What a text adds on the right of an operator is charged when the result is used next.

use std::{
    collections::HashMap,
    io,
    ops::Range,
    sync::{Arc, LazyLock},
};

use minijinja::{
    AutoEscape, Environment, Error, ErrorKind, Expression, UndefinedBehavior, Value as Template,
    machinery::{Token, tokenize},
    syntax::SyntaxConfig,
};
use parking_lot::RwLock;
use rota_core::evaluation::templates::{
    INSTRUCTIONS_MAX, LOOP, OPERATION, OUTPUT_BYTES_MAX, RECURSION_MAX, SOURCE_BYTES_MAX,
};

use super::{Filled, RenderError, budget, filters, value};

/// Compiled templates that are kept of each sort, and bytes of their sources. Beyond it all
/// are forgotten: whoever has that many templates compiles more than a list would save.
const KEPT_MAX: usize = 4_096;
const KEPT_BYTES_MAX: usize = 4 << 20;

/// Lives as long as the process, so that compiled expressions may be kept.
static EXPRESSIONS: LazyLock<Environment<'static>> = LazyLock::new(environment);

type Compiled = Option<Arc<Expression<'static, 'static>>>;

pub(super) struct Sandbox {
    /// The expression that a text is, or none where it is more than one.
    expressions: RwLock<Kept<Compiled>>,
    conditions: RwLock<Kept<Arc<Expression<'static, 'static>>>>,
    texts: RwLock<Texts>,
}

/// What was compiled, by its source.
struct Kept<T> {
    all: HashMap<Box<str>, T>,
    bytes: usize,
}

impl<T> Default for Kept<T> {
    fn default() -> Self {
        Self { all: HashMap::new(), bytes: 0 }
    }
}

impl<T> Kept<T> {
    fn put(&mut self, text: &str, value: T) {
        if self.all.len() >= KEPT_MAX || self.bytes + text.len() > KEPT_BYTES_MAX {
            *self = Self::default();
        }
        self.bytes += text.len();
        self.all.insert(text.into(), value);
    }
}

/// Texts with tags, kept under themselves.
struct Texts {
    environment: Environment<'static>,
    bytes: usize,
}

impl Default for Sandbox {
    fn default() -> Self {
        Self {
            expressions: RwLock::default(),
            conditions: RwLock::default(),
            texts: RwLock::new(Texts { environment: environment(), bytes: 0 }),
        }
    }
}

fn environment() -> Environment<'static> {
    let mut environment = Environment::empty();
    environment.set_undefined_behavior(UndefinedBehavior::Strict);
    environment.set_auto_escape_callback(|_| AutoEscape::None);
    environment.set_fuel(Some(INSTRUCTIONS_MAX));
    environment.set_recursion_limit(RECURSION_MAX);
    environment.set_formatter(|out, _, value| {
        let json = value::json_of(value).and_then(value::text_of);
        let text = json.map_err(|error| Error::new(ErrorKind::BadSerialization, error.to_string()))?;
        budget::charge(text.len())?;
        out.write_str(&text).map_err(Error::from)
    });
    filters::add_all(&mut environment);
    environment
}

impl Sandbox {
    /// Fills in a text that has tags.
    pub(super) fn fill(&self, text: &str, context: &Template) -> Result<Filled, RenderError> {
        if text.len() > SOURCE_BYTES_MAX {
            return Err(RenderError::new(format!(
                "is longer than {SOURCE_BYTES_MAX} bytes, the maximum for a template"
            )));
        }
        let shape = Shape::of(text, false);
        let work = OPERATION / 32 + text.len() / 16 + if shape.loops { LOOP } else { 0 };
        budget::charge(work).map_err(|error| explained(&error, text))?;
        shape.charge(text, context)?;
        match self.expression_of(text) {
            Some(expression) => {
                let inner = inside(text).unwrap_or(text);
                evaluate(&expression, inner, context).map(Filled::Value)
            }
            None => self.fill_text(text, context).map(Filled::Text),
        }
    }

    pub(super) fn condition(&self, text: &str, context: &Template) -> Result<bool, RenderError> {
        Shape::of(text, true).charge(text, context)?;
        let kept = self.conditions.read().all.get(text).cloned();
        let expression = match kept {
            Some(expression) => expression,
            None => keep(&self.conditions, text, Arc::new(compile(text)?)),
        };
        let value = expression.eval(context.clone()).map_err(|error| explained(&error, &hemmed(text, true)))?;
        if value.is_undefined() {
            return Err(missing(text));
        }
        Ok(value.is_true())
    }

    fn expression_of(&self, text: &str) -> Compiled {
        let kept = self.expressions.read().all.get(text).cloned();
        kept.unwrap_or_else(|| {
            // What parses between the braces as one expression is one.
            let compiled = inside(text).and_then(|inner| compile(inner).ok()).map(Arc::new);
            keep(&self.expressions, text, compiled)
        })
    }

    fn fill_text(&self, text: &str, context: &Template) -> Result<String, RenderError> {
        let known = {
            let texts = self.texts.read();
            texts.environment.get_template(text).is_ok()
        };
        if !known {
            self.keep_text(text)?;
        }
        let texts = self.texts.read();
        // Another thread may have forgotten it in between.
        let source = hemmed(text, false);
        let template = texts.environment.get_template(text).or_else(|_| texts.environment.template_from_str(&source));
        let template = template.map_err(|error| explained(&error, &source))?;
        let mut output = Bounded(Vec::new());
        let rendered = template.render_captured_to(context.clone(), &mut output);
        match rendered {
            Ok(_) => String::from_utf8(output.0).map_err(|_| RenderError::new("does not yield UTF-8")),
            Err(error) if error.kind() == ErrorKind::WriteFailure => Err(value::too_long()),
            Err(error) => Err(explained(&error, &source)),
        }
    }

    fn keep_text(&self, text: &str) -> Result<(), RenderError> {
        let source = hemmed(text, false);
        let mut texts = self.texts.write();
        if texts.environment.templates().count() >= KEPT_MAX || texts.bytes + text.len() > KEPT_BYTES_MAX {
            texts.environment.clear_templates();
            texts.bytes = 0;
        }
        let added = texts.environment.add_template_owned(text.to_owned(), source.clone());
        added.map_err(|error| explained(&error, &source))?;
        texts.bytes += text.len();
        Ok(())
    }
}

fn keep<T: Clone>(kept: &RwLock<Kept<T>>, text: &str, value: T) -> T {
    kept.write().put(text, value.clone());
    value
}

fn compile(text: &str) -> Result<Expression<'static, 'static>, RenderError> {
    let source = hemmed(text, true);
    EXPRESSIONS.compile_expression_owned(source.clone()).map_err(|error| explained(&error, &source))
}

fn evaluate(
    expression: &Expression<'static, 'static>,
    text: &str,
    context: &Template,
) -> Result<serde_json::Value, RenderError> {
    let value = expression.eval(context.clone()).map_err(|error| explained(&error, &hemmed(text, true)))?;
    // Even a strict engine answers a missing last key with nothing.
    if value.is_undefined() {
        return Err(missing(text));
    }
    value::json_of(&value).map_err(|error| error.at(&format!("`{}`", shown(text))))
}

/// What stands between the braces of a text that has nothing around them.
fn inside(text: &str) -> Option<&str> {
    let inner = text.trim().strip_prefix("{{")?.strip_suffix("}}")?;
    let inner = inner.strip_prefix(['-', '+']).unwrap_or(inner);
    Some(inner.strip_suffix(['-', '+']).unwrap_or(inner).trim())
}

/// The source with its operators hemmed in.
///
/// A filter binds closer than an operator, so `a * b` reads `(a | number) * - -b`:
/// neither side can be anything but a number.
fn hemmed(source: &str, is_expression: bool) -> String {
    // What the engine cannot read it will refuse itself, with a reason.
    let tokens = tokenize(source, is_expression, SyntaxConfig::default()).map_while(Result::ok);
    let tokens: Vec<(Token<'_>, Range<usize>)> =
        tokens.map(|(token, span)| (token, span.start_offset as usize..span.end_offset as usize)).collect();
    let mut hemmed = String::with_capacity(source.len() + 16);
    let mut done = 0;
    let mut in_header = false;
    for (n, (token, at)) in tokens.iter().enumerate() {
        let before = n.checked_sub(1).map(|before| &tokens[before].0);
        let of_attribute = n >= 2 && matches!(tokens[n - 2].0, Token::Dot);
        let (instead, to) = match token {
            Token::Mul => ("|number * - -", at.end),
            Token::Tilde => ("|short ~ ", at.end),
            Token::Plus => ("|short + ", at.end),
            Token::Eq | Token::Ne | Token::Lt | Token::Lte | Token::Gt | Token::Gte => (COMPARED, at.start),
            Token::Ident("for") if matches!(before, Some(Token::BlockStart)) => {
                in_header = true;
                continue;
            }
            Token::Ident("in") if std::mem::take(&mut in_header) => continue,
            Token::Ident("in") if of_attribute || is_operator(before) => (SOUGHT, at.start),
            Token::Ident("not") if (of_attribute || is_operator(before)) && follows_in(&tokens[n + 1..]) => {
                (SOUGHT, at.start)
            }
            _ => continue,
        };
        hemmed.push_str(source.get(done..at.start).unwrap_or_default());
        hemmed.push_str(instead);
        done = to;
    }
    hemmed.push_str(source.get(done..).unwrap_or_default());
    hemmed
}

/// What of a template must be known before it is filled in.
#[derive(Debug, Default)]
struct Shape {
    loops: bool,
    /// Colons between brackets that are not those of a map.
    slices: usize,
    /// A slice is taken in each turn of a loop.
    slices_in_loop: bool,
    /// A block whose text the engine keeps by itself, without a bound.
    captures: Option<&'static str>,
}

impl Shape {
    fn of(source: &str, is_expression: bool) -> Self {
        let mut shape = Self::default();
        let may_slice = source.contains('[') && source.contains(':');
        if !source.contains("{%") && !may_slice {
            return shape;
        }
        let (mut open, mut inside, mut header, mut starts) = (Vec::new(), 0_usize, false, false);
        for (token, _) in tokenize(source, is_expression, SyntaxConfig::default()).map_while(Result::ok) {
            match token {
                Token::Ident("for") if starts => (shape.loops, header) = (true, true),
                Token::Ident("endfor") if starts => inside = inside.saturating_sub(1),
                Token::Ident("filter") if starts => shape.captures = Some("filter"),
                Token::Ident("endset") if starts => shape.captures = Some("set"),
                Token::Ident("recursive") if header => shape.captures = Some("recursive"),
                Token::BlockEnd if std::mem::take(&mut header) => inside += 1,
                Token::BracketOpen => open.push(true),
                Token::BraceOpen | Token::ParenOpen => open.push(false),
                Token::BracketClose | Token::BraceClose | Token::ParenClose => drop(open.pop()),
                Token::Colon if open.last() == Some(&true) => {
                    shape.slices += 1;
                    shape.slices_in_loop |= inside > 0;
                }
                _ => {}
            }
            starts = matches!(token, Token::BlockStart);
        }
        shape
    }

    /// Charges for slices, which copy what they are taken of; refuses what has no bound.
    fn charge(&self, source: &str, context: &Template) -> Result<(), RenderError> {
        if let Some(block) = self.captures {
            return Err(RenderError::new(format!("has a `{block}` block that captures text, which is not supported")));
        }
        if self.slices_in_loop {
            return Err(RenderError::new("takes a slice such as `[1:2]` within a loop, which is not supported"));
        }
        if self.slices == 0 {
            return Ok(());
        }
        let roots = filters::LARGE_ROOTS.iter().filter_map(|root| context.get_attr(root).ok());
        let roots: Vec<Template> = roots.collect();
        let charged = (0..self.slices).try_for_each(|_| budget::charge_search(&roots));
        charged.map_err(|error| explained(&error, source))
    }
}

/// Charges for a comparison, and for a search.
const COMPARED: &str = "|compared ";
const SOUGHT: &str = "|sought ";

/// Whether a word behind this token may be an operator: it ends a value.
fn is_operator(before: Option<&Token<'_>>) -> bool {
    match before {
        Some(Token::Ident(word)) => !matches!(*word, "not" | "is" | "and" | "or" | "in" | "if" | "else" | "elif"),
        Some(
            Token::Str(_)
            | Token::String(_)
            | Token::Int(_)
            | Token::Int128(_)
            | Token::Float(_)
            | Token::ParenClose
            | Token::BracketClose
            | Token::BraceClose,
        ) => true,
        _ => false,
    }
}

fn follows_in(rest: &[(Token<'_>, Range<usize>)]) -> bool {
    matches!(rest.first(), Some((Token::Ident("in"), _)))
}

fn missing(path: &str) -> RenderError {
    RenderError::new(format!("`{}` has no value", shown(path)))
}

/// An error of the engine in our words: the expression it happened in, and why.
fn explained(error: &Error, source: &str) -> RenderError {
    let place = error.range().and_then(|range| source.get(path_start(source, range.start)..range.end)).map(shown);
    // What the sandbox put in, nobody has written.
    let ours = |place: &String| ["number", "short", "compared", "sought"].contains(&place.as_str());
    let place = place.filter(|place| error.kind() == ErrorKind::UndefinedError || !ours(place));
    match (error.kind(), place) {
        (ErrorKind::UndefinedError, Some(place)) => RenderError::new(format!("`{place}` has no value")),
        (ErrorKind::OutOfFuel, _) => RenderError::new(format!("takes more than {INSTRUCTIONS_MAX} steps to render")),
        (kind, Some(place)) => {
            RenderError::new(format!("`{place}`: {}", error.detail().map_or_else(|| kind.to_string(), str::to_owned)))
        }
        (kind, None) => RenderError::new(error.detail().map_or_else(|| kind.to_string(), str::to_owned)),
    }
}

/// Where the path begins whose later part begins at `at`: the engine names
/// `.b.c` of `a.b.c`.
fn path_start(source: &str, at: usize) -> usize {
    let is_later_part = source.get(at..).is_some_and(|rest| rest.starts_with(['.', '[']));
    let of_path = |c: &char| c.is_alphanumeric() || "_.[]'\"".contains(*c);
    let before = source.get(..at).filter(|_| is_later_part).unwrap_or_default();
    at - before.chars().rev().take_while(of_path).map(char::len_utf8).sum::<usize>()
}

/// A piece of a template as a person wrote it, cut to a line.
fn shown(text: &str) -> String {
    let plain = text
        .replace("|number * - -", "*")
        .replace("|short ~ ", "~")
        .replace("|short + ", "+")
        .replace(COMPARED, "")
        .replace(SOUGHT, "");
    plain.trim().chars().take(200).collect()
}

/// Output that ends where it is full.
struct Bounded(Vec<u8>);

impl io::Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.0.len() + bytes.len() > OUTPUT_BYTES_MAX {
            return Err(io::Error::from(io::ErrorKind::StorageFull));
        }
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
