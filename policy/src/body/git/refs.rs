//! Which refs a push updates: the command list of `git-receive-pack` (gitprotocol-pack).
//!
//! Strict, because servers are many (git, JGit, libgit2, …) and each is lenient elsewhere. Whether
//! an update is a fast-forward can't be known from the request.

use std::collections::BTreeSet;

use super::super::{BodyPrefix, Content, Unclear, shown};

/// Refs in one push. Far above what people push at once; a mirror is pushed in parts.
pub(crate) const MAX_REFS: usize = 1024;
/// Bytes of a pkt-line with its length (gitprotocol-common).
const MAX_PKT_LINE: usize = 65520;

/// One command of a push.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RefUpdate {
    /// The full name: `refs/heads/main`.
    pub(crate) name: String,
    pub(crate) change: RefChange,
}

/// What a command does to its ref.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RefChange {
    Create,
    Update,
    Delete,
}

/// Reads the commands at the start of a push. Empty for the probe that a client sends before a
/// large push, and for one that only says where history is cut off.
pub(crate) fn updated_refs(content: &Content<'_>) -> Result<Vec<RefUpdate>, Unclear> {
    let mut lines = PktLines {
        prefix: content.prefix()?,
    };
    let mut updates = Vec::new();
    let mut names = BTreeSet::new();
    let mut id_len = None;
    while let Some(line) = lines.next()? {
        let line = line.strip_suffix(b"\n").unwrap_or(line);
        if let Some(id) = line.strip_prefix(b"shallow ") {
            if !updates.is_empty() {
                return Err(Unclear::new("`shallow` after the first command"));
            }
            check_id(id, &mut id_len)?;
            continue;
        }
        let command = if updates.is_empty() {
            without_capabilities(line)?
        } else {
            line
        };
        let update = command_of(command, &mut id_len)?;
        if !names.insert(update.name.clone()) {
            let why = format!("the ref `{}` is updated twice", shown(&update.name));
            return Err(Unclear::new(why));
        }
        if updates.len() == MAX_REFS {
            let why = format!("the push updates more than {MAX_REFS} refs");
            return Err(Unclear::new(why));
        }
        updates.push(update);
    }
    Ok(updates)
}

/// The pkt-lines of a body up to the flush packet.
struct PktLines<'a> {
    prefix: BodyPrefix<'a>,
}

impl<'a> PktLines<'a> {
    /// The content of the next line; `None` at the flush packet.
    fn next(&mut self) -> Result<Option<&'a [u8]>, Unclear> {
        let len = self.take(4)?;
        let Some(len) = length(len) else {
            let why = format!("`{}` is no length of a pkt-line", shown(len));
            return Err(Unclear::new(why));
        };
        match len {
            0 => Ok(None),
            // 1 to 3 are packets that a push doesn't have; 4 would be an empty line, which servers
            // take for several things.
            1..=4 | MAX_PKT_LINE.. if len != MAX_PKT_LINE => {
                let why = format!("a pkt-line of the length {len}");
                Err(Unclear::new(why))
            }
            _ => self.take(len - 4).map(Some),
        }
    }

    fn take(&mut self, len: usize) -> Result<&'a [u8], Unclear> {
        let Some((taken, rest)) = self.prefix.bytes.split_at_checked(len) else {
            return Err(Unclear::new(if self.prefix.complete {
                "the body ends before the end of the command list"
            } else {
                "the command list is longer than what is read of the body"
            }));
        };
        self.prefix.bytes = rest;
        Ok(taken)
    }
}

/// Four digits in lower case, as git writes them.
fn length(digits: &[u8]) -> Option<usize> {
    digits
        .iter()
        .try_fold(0, |sum, digit| Some(sum * 16 + hex(*digit)?))
}

fn hex(digit: u8) -> Option<usize> {
    match digit {
        b'0'..=b'9' => Some(usize::from(digit - b'0')),
        b'a'..=b'f' => Some(usize::from(digit - b'a') + 10),
        _ => None,
    }
}

/// The first command has the client's capabilities behind a zero byte.
fn without_capabilities(line: &[u8]) -> Result<&[u8], Unclear> {
    let mut parts = line.splitn(2, |byte| *byte == 0);
    let command = parts.next().unwrap_or_default();
    let capabilities = parts.next().unwrap_or_default();
    if command == b"push-cert" {
        return Err(Unclear::new("the push is signed"));
    }
    if !capabilities.iter().all(|byte| matches!(byte, b' '..=b'~')) {
        let why = format!("`{}` are no capabilities", shown(capabilities));
        return Err(Unclear::new(why));
    }
    Ok(command)
}

/// `old-id SP new-id SP name`.
fn command_of(line: &[u8], id_len: &mut Option<usize>) -> Result<RefUpdate, Unclear> {
    let mut parts = line.splitn(3, |byte| *byte == b' ');
    let (Some(old), Some(new), Some(name)) = (parts.next(), parts.next(), parts.next()) else {
        let why = format!("`{}` is no command of a push", shown(line));
        return Err(Unclear::new(why));
    };
    check_id(old, id_len)?;
    check_id(new, id_len)?;
    let change = match (is_zero(old), is_zero(new)) {
        (true, false) => RefChange::Create,
        (false, false) => RefChange::Update,
        (false, true) => RefChange::Delete,
        (true, true) => return Err(Unclear::new("a command from no object to no object")),
    };
    match std::str::from_utf8(name) {
        Ok(name) if is_ref_name(name) => Ok(RefUpdate {
            name: name.to_owned(),
            change,
        }),
        _ => {
            let why = format!("`{}` is no canonical name of a ref", shown(name));
            Err(Unclear::new(why))
        }
    }
}

/// SHA-1 or SHA-256 in lower case, all of a push alike.
fn check_id(id: &[u8], expected_len: &mut Option<usize>) -> Result<(), Unclear> {
    let len = *expected_len.get_or_insert(id.len());
    if id.len() != len || !matches!(len, 40 | 64) || !id.iter().all(|byte| hex(*byte).is_some()) {
        let why = format!("`{}` is no object id of this push", shown(id));
        return Err(Unclear::new(why));
    }
    Ok(())
}

fn is_zero(id: &[u8]) -> bool {
    id.iter().all(|byte| *byte == b'0')
}

/// A name below `refs/` by the rules of git-check-ref-format. Beyond ASCII only letters and digits:
/// file systems drop or compose other characters, so two spellings could be one ref.
fn is_ref_name(name: &str) -> bool {
    let may_have = |c: char| match c {
        ' ' | '~' | '^' | ':' | '?' | '*' | '[' | '\\' => false,
        '!'..='~' => true,
        _ => !c.is_ascii() && c.is_alphanumeric(),
    };
    let is_component = |component: &str| {
        !component.is_empty()
            && !component.starts_with('.')
            && !component.ends_with(".lock")
            && component.chars().all(may_have)
    };
    name.strip_prefix("refs/").is_some_and(|rest| {
        rest.split('/').all(is_component)
            && !rest.contains("..")
            && !rest.contains("@{")
            && !rest.ends_with('.')
    })
}

#[cfg(test)]
mod tests {
    use super::super::super::fixture::{coded, content, cut_off};
    use super::*;
    use proptest::prelude::*;

    const TYPE: &str = "application/x-git-receive-pack-request";
    const ZERO: &str = "0000000000000000000000000000000000000000";
    const A: &str = "ec1611fd68fb274e2ce0b22113fd005505d06944";
    const B: &str = "01c6c99ccc4bfc2dd6791d23345fcee1406e7db7";

    fn read(body: &[u8]) -> Result<Vec<(String, RefChange)>, Unclear> {
        let updates = updated_refs(&content(TYPE, body))?;
        Ok(updates
            .into_iter()
            .map(|update| (update.name, update.change))
            .collect())
    }

    fn why(body: &[u8]) -> String {
        read(body).unwrap_err().to_string()
    }

    fn pkt(line: impl AsRef<[u8]>) -> Vec<u8> {
        let line = line.as_ref();
        let mut pkt = format!("{:04x}", line.len() + 4).into_bytes();
        pkt.extend_from_slice(line);
        pkt
    }

    /// A body of these lines, a flush packet and the start of a pack.
    fn body<L: AsRef<[u8]>>(lines: &[L]) -> Vec<u8> {
        let mut body: Vec<u8> = lines.iter().flat_map(pkt).collect();
        body.extend_from_slice(b"0000PACK\0\0\0\x02");
        body
    }

    fn command(name: &str) -> String {
        format!("{A} {B} {name}\0 report-status")
    }

    fn named(name: &str, change: RefChange) -> (String, RefChange) {
        (name.to_owned(), change)
    }

    /// Captured from `git push` of git 2.47.3: a branch forward, one deleted, one created.
    const UPDATE_DELETE_CREATE: &[u8] = b"00afec1611fd68fb274e2ce0b22113fd005505d06944 \
        01c6c99ccc4bfc2dd6791d23345fcee1406e7db7 refs/heads/main\x00 report-status-v2 side-band-64k \
        quiet object-format=sha1 agent=git/2.47.30064ec1611fd68fb274e2ce0b22113fd005505d06944 \
        0000000000000000000000000000000000000000 refs/heads/old0068000000000000000000000000000000000\
        0000000 01c6c99ccc4bfc2dd6791d23345fcee1406e7db7 refs/heads/agent/10000PACK\x00\x00\x00\x02\
        \x00\x00\x00\x03\x90\x0bx\x9c\x85\xccM\n\x021\x0c@\xe1}O\xd1\xbd I\xa6I[\x10\xf1*\xfdI\xd0";

    /// The same from a shallow clone, with a push option.
    const SHALLOW: &[u8] = b"0035shallow a76faa4dfdcf55115da753c135b5d331284c1b6f\n\
        00bb0000000000000000000000000000000000000000 f962c7f451a98618c2c0ed4065d5a083354f5e38 \
        refs/heads/opt\x00 report-status-v2 side-band-64k quiet push-options object-format=sha1 \
        agent=git/2.47.30000000bci.skip0000PACK\x00\x00\x00\x02\x00\x00\x00\x00";

    /// The same into a repository with SHA-256 ids.
    const SHA256: &[u8] = b"00e1\
        0000000000000000000000000000000000000000000000000000000000000000 \
        47d45c7db0c0ea61cc73bc0740374fc329d71d4d27bd0d8a6e2afc53285ad54f refs/heads/main\x00 \
        report-status-v2 side-band-64k quiet object-format=sha256 agent=git/2.47.30000PACK";

    #[test]
    fn pushes_of_a_real_client_are_read() {
        assert_eq!(
            read(UPDATE_DELETE_CREATE),
            Ok(vec![
                named("refs/heads/main", RefChange::Update),
                named("refs/heads/old", RefChange::Delete),
                named("refs/heads/agent/1", RefChange::Create),
            ])
        );
        assert_eq!(
            read(SHALLOW),
            Ok(vec![named("refs/heads/opt", RefChange::Create)])
        );
        assert_eq!(
            read(SHA256),
            Ok(vec![named("refs/heads/main", RefChange::Create)])
        );
        // The probe before a large push.
        assert_eq!(read(b"0000"), Ok(vec![]));
    }

    #[test]
    fn the_prefix_has_to_reach_the_flush_packet() {
        let flush = 0xaf + 0x64 + 0x68 + 4;
        for len in 0..=UPDATE_DELETE_CREATE.len() {
            let prefix = &UPDATE_DELETE_CREATE[..len];
            assert_eq!(
                updated_refs(&cut_off(TYPE, prefix)).is_ok(),
                len >= flush,
                "{len}"
            );
            assert_eq!(read(prefix).is_ok(), len >= flush, "{len}");
        }
        assert!(why(b"").contains("the body ends"));
        let cut = updated_refs(&cut_off(TYPE, b"00")).unwrap_err();
        assert!(
            cut.to_string().contains("longer than what is read"),
            "{cut}"
        );
    }

    #[test]
    fn a_coded_body_is_not_read() {
        let unclear = updated_refs(&coded(TYPE, "gzip", b"0000")).unwrap_err();
        assert_eq!(unclear.to_string(), "the body is coded as `gzip`");
    }

    #[test]
    fn lengths_are_those_that_git_writes() {
        for start in [
            &b"0001"[..],
            b"0002",
            b"0003",
            b"0004",
            b"fff1",
            b"ffff",
            b"00AF",
            b"-001",
            b"+001",
            b" 001",
            b"0x10",
            b"00g0",
            b"\0\0\0\0",
        ] {
            let mut body = start.to_vec();
            body.resize(0x1_0010, b'0');
            assert!(read(&body).is_err(), "{start:?}");
        }
        // An empty line or another special packet is no end of the list.
        for special in [&b"0001"[..], b"0002", b"0004"] {
            let body = [&pkt(command("refs/heads/a"))[..], special, b"0000"].concat();
            assert!(read(&body).is_err(), "{special:?}");
        }
        // The longest line that there is; its name is long, and a name all the same.
        let mut longest = command(&format!("refs/heads/{}", "a".repeat(65000)));
        longest.push_str(&" ".repeat(MAX_PKT_LINE - 4 - longest.len()));
        assert!(body(&[&longest]).starts_with(b"fff0"));
        assert_eq!(read(&body(&[longest])).unwrap().len(), 1);
    }

    #[test]
    fn commands_have_one_form() {
        for line in [
            "".to_owned(),
            format!("{A} {B}"),
            format!("{A} {B} "),
            format!("{A}  {B} refs/heads/a"),
            format!("{A} {B} refs/heads/a refs/heads/b"),
            format!(" {A} {B} refs/heads/a"),
            format!("{A}\t{B}\trefs/heads/a"),
            format!("{} {B} refs/heads/a", A.to_uppercase()),
            format!("{A} {} refs/heads/a", &B[1..]),
            format!("{A} {B}{B} refs/heads/a"),
            format!("{A}0 {B}0 refs/heads/a"),
            format!("{ZERO} {ZERO} refs/heads/a"),
            format!("{A} {B} refs/heads/a\n\n"),
            format!("{A} {B} refs/heads/a\r\n"),
            format!("{A} {B} refs/heads/a\n\0caps"),
            format!("{A} {B} refs/heads/a\0caps\0more"),
            format!("{A} {B} refs/heads/a\0caps\nmore"),
            "push-cert\0 caps".to_owned(),
            "push-cert".to_owned(),
            "shallow ".to_owned(),
            format!("shallow {A} {B}"),
            format!("shallow {A}\0caps"),
            format!("unshallow {A}"),
        ] {
            assert!(read(&body(&[&line])).is_err(), "{line:?}");
        }
        for (line, change) in [
            (format!("{A} {B} refs/heads/a"), RefChange::Update),
            (format!("{A} {B} refs/heads/a\n"), RefChange::Update),
            (format!("{A} {B} refs/heads/a\0"), RefChange::Update),
            (format!("{A} {B} refs/heads/a\0caps\n"), RefChange::Update),
            (format!("{A} {ZERO} refs/heads/a"), RefChange::Delete),
            (format!("{ZERO} {B} refs/heads/a"), RefChange::Create),
        ] {
            let expected = Ok(vec![named("refs/heads/a", change)]);
            assert_eq!(read(&body(&[&line])), expected, "{line:?}");
        }
    }

    #[test]
    fn later_lines_are_plain_commands() {
        let first = command("refs/heads/a");
        for second in [
            format!("{A} {B} refs/heads/b\0 caps"),
            format!("{A} {B} refs/heads/a"),
            format!("shallow {A}"),
            "push-cert\0 caps".to_owned(),
            // One push, one kind of ids.
            format!("{} {} refs/heads/b", "0".repeat(64), "1".repeat(64)),
        ] {
            assert!(read(&body(&[&first, &second])).is_err(), "{second:?}");
        }
        let mixed = [format!("shallow {}", "1".repeat(64)), first];
        assert!(read(&body(&mixed)).is_err());
        let only_shallow = [format!("shallow {A}")];
        assert_eq!(read(&body(&only_shallow)), Ok(vec![]));
    }

    #[test]
    fn signed_pushes_say_so() {
        assert_eq!(
            why(&body(&["push-cert\0 report-status"])),
            "the push is signed"
        );
    }

    #[test]
    fn the_number_of_refs_is_limited() {
        let lines = |count: usize| -> Vec<u8> {
            let lines: Vec<_> = (0..count)
                .map(|n| format!("{A} {B} refs/tags/{n}"))
                .collect();
            body(&lines)
        };
        assert_eq!(read(&lines(MAX_REFS)).unwrap().len(), MAX_REFS);
        assert_eq!(
            why(&lines(MAX_REFS + 1)),
            "the push updates more than 1024 refs"
        );
    }

    #[test]
    fn ref_names_are_canonical() {
        for name in [
            "refs/heads/main",
            "refs/heads/agent/a-1_b.c",
            "refs/tags/v1.0",
            "refs/for/main%topic=x",
            "refs/heads/@",
            "refs/heads/a@b",
            "refs/heads/-x",
            "refs/heads/{x}",
            "refs/heads/bücher",
            "refs/heads/日本",
            "refs/x",
        ] {
            assert!(is_ref_name(name), "{name}");
            assert!(read(&body(&[command(name)])).is_ok(), "{name}");
        }
        for name in [
            "",
            "main",
            "heads/main",
            "HEAD",
            "REFS/heads/main",
            "/refs/heads/main",
            "refs",
            "refs/",
            "refs//heads/main",
            "refs/heads//main",
            "refs/heads/main/",
            "refs/heads/main.",
            "refs/heads/main.lock",
            "refs/heads/main.lock/x",
            "refs/heads/.main",
            "refs/heads/a..b",
            "refs/heads/../heads/main",
            "refs/heads/./main",
            "refs/heads/ma in",
            "refs/heads/main ",
            "refs/heads/main\t",
            "refs/heads/main\n",
            "refs/heads/main\u{7f}",
            "refs/heads/main~1",
            "refs/heads/main^",
            "refs/heads/main:x",
            "refs/heads/ma?n",
            "refs/heads/ma*n",
            "refs/heads/ma[i]n",
            "refs/heads/ma\\in",
            "refs/heads/@{1}",
            "refs/heads/ma\u{200c}in",
            "refs/heads/ma\u{301}in",
            "refs/heads/main\u{a0}",
        ] {
            assert!(!is_ref_name(name), "{name:?}");
        }
        let latin1 = [command("refs/heads/x").as_bytes(), b"\xff"].concat();
        assert!(read(&body(&[latin1])).is_err());
        let latin1 = [format!("{A} {B} refs/heads/").as_bytes(), b"\xff"].concat();
        assert!(read(&body(&[latin1])).is_err());
    }

    fn changes() -> impl Strategy<Value = Vec<(String, RefChange)>> {
        let change = prop::sample::select(vec![
            RefChange::Create,
            RefChange::Update,
            RefChange::Delete,
        ]);
        prop::collection::btree_map("refs/heads/[a-z]{1,6}", change, 0..6)
            .prop_map(|changes| changes.into_iter().collect())
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(changes in changes(), shallow in 0..3_usize, lf: bool) {
            let mut lines = vec![format!("shallow {A}\n"); shallow];
            for (at, (name, change)) in changes.iter().enumerate() {
                let (old, new) = match change {
                    RefChange::Create => (ZERO, B),
                    RefChange::Update => (A, B),
                    RefChange::Delete => (A, ZERO),
                };
                let capabilities = if at == 0 { "\0 quiet agent=x" } else { "" };
                let end = if lf { "\n" } else { "" };
                lines.push(format!("{old} {new} {name}{capabilities}{end}"));
            }
            prop_assert_eq!(read(&body(&lines)), Ok(changes));
        }

        /// Wherever a byte of a real push is changed, no panic, and no ref that isn't there.
        #[test]
        fn a_damaged_push_is_read_without_panic(at in 0..UPDATE_DELETE_CREATE.len(), byte: u8) {
            let mut bytes = UPDATE_DELETE_CREATE.to_vec();
            bytes[at] = byte;
            for update in updated_refs(&content(TYPE, &bytes)).unwrap_or_default() {
                prop_assert!(String::from_utf8_lossy(&bytes).contains(&update.name));
            }
        }

        #[test]
        fn any_bytes_are_read_without_panic(bytes: Vec<u8>, len in 0..80_usize) {
            let _ = read(&bytes);
            let _ = read(&[format!("{len:04x}").as_bytes(), &bytes].concat());
        }
    }
}
