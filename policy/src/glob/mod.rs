//! Globs: on canonical paths, segment by segment, and on plain texts.
//!
//! A glob is read once into segments or tokens, small and flat; matching walks them along the text.
//! It allocates nothing, and no pattern makes it take longer than the product of both lengths. The
//! same segments are what policies are compared by, so a glob means one thing everywhere.

mod bytes;
mod escapes;
mod parse;
mod path;
mod segment;
mod text;

#[cfg(test)]
mod tests;

pub(crate) use self::bytes::ByteSet;
pub(crate) use self::path::{GlobError, PathGlob, PathPatterns};
pub(crate) use self::segment::{Segment, Token};
pub(crate) use self::text::TextGlob;

/// Bytes of one pattern.
const MAX_PATTERN: usize = 1024;
