//! Where a path stands apart from its patterns: whether it can still become a canonical path, and
//! what a server makes of it that drops parameters and empty segments. Both follow
//! `canonical/path.rs`, and tests hold them against it.

use super::letters::{Alphabet, Letter, Role};

/// A few flags in a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Head {
    piece: Piece,
    /// `%2F` was read.
    slash: bool,
    /// `%25` was read.
    percent: bool,
    part: Part,
    /// The simplified reading has a segment.
    has_output: bool,
    /// Of a decoded text: how much of an escape was read last, 0 to 2 characters.
    escape: u8,
}

/// What was read since the last slash or encoded slash, up to `;`. Dot segments are no part of a
/// canonical path, and must not be in one for servers that drop parameters or decode slashes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Piece {
    /// Not even the first slash was read.
    Nothing,
    Empty,
    Dot,
    Dots,
    Name,
}

/// Where the decoded path stands in its segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Start,
    Name,
    Parameters,
}

/// What the simplified reading goes on with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Output {
    Nothing,
    Byte,
    SlashAndByte,
}

impl Head {
    pub(super) const START: Self = Self {
        piece: Piece::Nothing,
        slash: false,
        percent: false,
        part: Part::Start,
        has_output: false,
        escape: 0,
    };

    pub(super) const fn word(self) -> u64 {
        let piece = match self.piece {
            Piece::Nothing => 0,
            Piece::Empty => 1,
            Piece::Dot => 2,
            Piece::Dots => 3,
            Piece::Name => 4,
        };
        let part = match self.part {
            Part::Start => 0,
            Part::Name => 1,
            Part::Parameters => 2,
        };
        piece
            | part << 3
            | (self.slash as u64) << 5
            | (self.percent as u64) << 6
            | (self.has_output as u64) << 7
            | (self.escape as u64) << 8
    }

    pub(super) const fn from_word(word: u64) -> Self {
        Self {
            piece: match word & 7 {
                0 => Piece::Nothing,
                1 => Piece::Empty,
                2 => Piece::Dot,
                3 => Piece::Dots,
                _ => Piece::Name,
            },
            part: match word >> 3 & 3 {
                0 => Part::Start,
                1 => Part::Name,
                _ => Part::Parameters,
            },
            slash: word >> 5 & 1 == 1,
            percent: word >> 6 & 1 == 1,
            has_output: word >> 7 & 1 == 1,
            escape: match word >> 8 & 3 {
                0 => 0,
                1 => 1,
                _ => 2,
            },
        }
    }

    /// Goes on with a letter; `None` where no text of the alphabet does.
    pub(super) fn read(self, letter: &Letter, role: Role, alphabet: Alphabet) -> Option<Self> {
        let is_dots = matches!(self.piece, Piece::Dot | Piece::Dots);
        let piece = match (self.piece, role) {
            (Piece::Nothing, Role::Slash) => Piece::Empty,
            (Piece::Nothing, _) => return None,
            _ if alphabet == Alphabet::Decoded => return self.read_decoded(letter),
            (_, Role::Slash | Role::EncodedSlash | Role::Semicolon) if is_dots => return None,
            (_, Role::Slash | Role::EncodedSlash) => Piece::Empty,
            (Piece::Empty, Role::Dot) => Piece::Dot,
            (Piece::Dot, Role::Dot) => Piece::Dots,
            (_, Role::Dot | Role::Semicolon | Role::EncodedPercent | Role::Plain) => Piece::Name,
        };
        Some(Self {
            piece,
            slash: self.slash || role == Role::EncodedSlash,
            percent: self.percent || role == Role::EncodedPercent,
            ..self
        })
    }

    /// A decoded text has no escape.
    fn read_decoded(self, letter: &Letter) -> Option<Self> {
        let escape = match (letter.part_of_escape(), self.escape) {
            (1, _) => 1,
            (2, 2) => return None,
            (2, 1) => 2,
            _ => 0,
        };
        Some(Self { escape, ..self })
    }

    /// Whether a path may end here.
    pub(super) const fn may_end(self) -> bool {
        matches!(self.piece, Piece::Empty | Piece::Name)
    }

    pub(super) const fn has_slash(self) -> bool {
        self.slash
    }

    pub(super) const fn has_percent(self) -> bool {
        self.percent
    }

    /// What tells paths apart that match the same patterns.
    pub(super) const fn flags(self) -> u64 {
        self.slash as u64 | (self.percent as u64) << 1
    }

    /// Goes on with a byte of the decoded path.
    pub(super) const fn simplify(&mut self, byte: u8) -> Output {
        match (byte, self.part) {
            (b'/', _) => {
                self.part = Part::Start;
                Output::Nothing
            }
            (b';', _) => {
                self.part = Part::Parameters;
                Output::Nothing
            }
            (_, Part::Start) => {
                self.part = Part::Name;
                self.has_output = true;
                Output::SlashAndByte
            }
            (_, Part::Name) => Output::Byte,
            (_, Part::Parameters) => Output::Nothing,
        }
    }

    /// The simplified reading is then a single slash.
    pub(super) const fn is_nothing_when_simplified(self) -> bool {
        !self.has_output
    }
}
