//! Unicode's `IdnaTestV2.txt` (UTS 46), as the crate `idna` carries it.

use outgate_policy::Host;

use crate::packages;
use crate::table::Table;

/// A line of the data: a name, and what `toASCII` without transitional processing makes of it.
struct Case {
    source: String,
    ascii: String,
    status: Vec<String>,
}

/// Lines that hold half of a surrogate pair, which is no Unicode text and can't be asked about.
const NO_TEXT: usize = 2;

fn cases() -> Vec<Case> {
    let text = packages::read("idna", "1.1.0", "tests/IdnaTestV2.txt");
    let lines = text
        .lines()
        .map(|line| line.split('#').next().unwrap_or_default());
    let lines: Vec<&str> = lines.filter(|line| !line.trim().is_empty()).collect();
    let cases: Vec<Case> = lines.iter().filter_map(|line| case(line)).collect();
    assert_eq!(lines.len() - cases.len(), NO_TEXT);
    cases
}

fn case(line: &str) -> Option<Case> {
    let columns: Vec<&str> = line.split(';').map(str::trim).collect();
    let [source, unicode, unicode_status, ascii, ascii_status, ..] = columns[..] else {
        panic!("a line of another form: {line}");
    };
    // A blank column means: as the one before it.
    let ascii = [ascii, unicode, source];
    let ascii = ascii.into_iter().find(|column| !column.is_empty());
    let status = [ascii_status, unicode_status];
    let status = status.into_iter().find(|column| !column.is_empty());
    let status = status.unwrap_or_default().trim_matches(['[', ']']);
    let codes = status.split(',').map(str::trim);
    Some(Case {
        source: unescaped(source)?,
        ascii: unescaped(ascii?)?,
        status: codes
            .filter(|code| !code.is_empty())
            .map(str::to_owned)
            .collect(),
    })
}

fn unescaped(text: &str) -> Option<String> {
    if text == "\"\"" {
        return Some(String::new());
    }
    let mut out = String::new();
    let mut rest = text;
    while let Some((front, after)) = rest.split_once('\\') {
        out.push_str(front);
        let (digits, after) = match after.strip_prefix("x{") {
            Some(after) => after.split_once('}').unwrap(),
            None => after.strip_prefix('u').unwrap().split_at(4),
        };
        out.push(char::from_u32(u32::from_str_radix(digits, 16).unwrap())?);
        rest = after;
    }
    out.push_str(rest);
    Some(out)
}

/// Why we accept what the data calls an error; `None` where no reviewed reason holds. Every code of
/// the case must have its reason.
fn reviewed(case: &Case) -> Option<&'static str> {
    let mut reason = None;
    for code in &case.status {
        reason = Some(match code.as_str() {
            // The root label: it means the same name, and we write it without.
            "A4_2" if case.source.ends_with(['.', '。']) => "one trailing dot",
            // CheckHyphens is for registries. Names such as `r3---sn-x` are in use and have one reading.
            "V2" | "V3" => "hyphens in the third and fourth place, in front or at the end",
            // The data is of Unicode 16, and the tables that we link are newer.
            "V7" if case.source.chars().any(is_newer) || decoded(case).chars().any(is_newer) => {
                "character that came after Unicode 16"
            }
            _ => return None,
        });
    }
    reason
}

fn decoded(case: &Case) -> String {
    Host::parse(&case.source).map_or_else(|_| String::new(), |host| host.to_unicode())
}

/// CJK extension J of Unicode 17, Seal of Unicode 18.
fn is_newer(character: char) -> bool {
    matches!(character, '\u{323b0}'..='\u{33479}' | '\u{3d000}'..='\u{3fc3f}')
}

#[test]
fn names_in_policy_files_become_what_unicode_says() {
    let mut table = Table::default();
    let mut wrong = Vec::new();
    for case in cases() {
        let Case {
            source,
            ascii,
            status,
        } = &case;
        let shown = source.escape_debug();
        match (Host::from_unicode(source), status.is_empty()) {
            (Ok(host), true) if host.as_str() == ascii => table.count("the same name", source),
            (Ok(host), true) => wrong.push(format!("`{shown}` is `{ascii}`, we read {host}")),
            (Err(_), false) => table.count("refused by both", source),
            (Err(error), true) => wrong.push(format!("`{shown}` is `{ascii}`, we refuse: {error}")),
            (Ok(host), false) => match reviewed(&case) {
                Some(reason) => table.count(reason, source),
                None => wrong.push(format!(
                    "`{shown}` is refused for {status:?}, we read {host}"
                )),
            },
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    table.assert(
        "names in policy files",
        &[
            ("character that came after Unicode 16", 5),
            (
                "hyphens in the third and fourth place, in front or at the end",
                21,
            ),
            ("one trailing dot", 27),
            ("refused by both", 5788),
            ("the same name", 546),
        ],
    );
}

#[test]
fn on_the_wire_every_valid_ascii_form_reads_as_itself() {
    let mut count = 0;
    for Case { ascii, .. } in cases().into_iter().filter(|case| case.status.is_empty()) {
        let host = Host::parse(&ascii).unwrap_or_else(|error| panic!("`{ascii}`: {error}"));
        assert_eq!(host.as_str(), ascii);
        assert_eq!(Host::from_unicode(&host.to_unicode()), Ok(host));
        count += 1;
    }
    assert_eq!(count, 546);
}
