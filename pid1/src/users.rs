//! Who a command runs as, from the guest's own `/etc/passwd` and `/etc/group`.

use std::path::Path;

use outgate_pid1::api::{ApiError, ErrorCode};

/// A user to become.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct User {
    pub(crate) name: Option<String>,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// Supplementary groups, with `gid` among them.
    pub(crate) groups: Vec<u32>,
    pub(crate) home: String,
}

impl User {
    /// Looks `wanted` up: a name, a `UID`, or `UID:GID`. Numbers need no entry.
    pub(crate) fn look_up(root: &Path, wanted: &str) -> Result<Self, ApiError> {
        let passwd = read(root, "etc/passwd");
        let group = read(root, "etc/group");
        let (user, gid) = match wanted.split_once(':') {
            Some((user, gid)) => (user, Some(gid)),
            None => (wanted, None),
        };
        let by_number = user.parse::<u32>().ok();
        let entry = passwd
            .lines()
            .filter_map(Entry::parse)
            .find(|entry| match by_number {
                Some(uid) => entry.uid == uid,
                None => entry.name == user,
            });
        let mut found = match (entry, by_number) {
            (Some(entry), _) => entry.into_user(&group),
            (None, Some(uid)) => Self {
                name: None,
                uid,
                gid: uid,
                groups: vec![uid],
                home: "/".to_owned(),
            },
            (None, None) => return Err(unknown(wanted)),
        };
        if let Some(gid) = gid {
            found.gid = gid.parse().map_err(|_| unknown(wanted))?;
            found.groups = vec![found.gid];
        }
        Ok(found)
    }
}

/// One line of `/etc/passwd`.
struct Entry<'a> {
    name: &'a str,
    uid: u32,
    gid: u32,
    home: &'a str,
}

impl<'a> Entry<'a> {
    fn parse(line: &'a str) -> Option<Self> {
        let mut fields = line.split(':');
        let name = fields.next().filter(|name| !name.is_empty())?;
        let uid = fields.nth(1)?.parse().ok()?;
        let gid = fields.next()?.parse().ok()?;
        let home = fields.nth(1)?;
        Some(Self {
            name,
            uid,
            gid,
            home,
        })
    }

    fn into_user(self, group: &str) -> User {
        let mut groups = vec![self.gid];
        groups.extend(group.lines().filter_map(|line| {
            let mut fields = line.split(':');
            let gid: u32 = fields.nth(2)?.parse().ok()?;
            fields
                .next()?
                .split(',')
                .any(|member| member == self.name)
                .then_some(gid)
        }));
        groups.sort_unstable();
        groups.dedup();
        let home = if self.home.is_empty() { "/" } else { self.home };
        User {
            name: Some(self.name.to_owned()),
            uid: self.uid,
            gid: self.gid,
            groups,
            home: home.to_owned(),
        }
    }
}

/// An image without the file has no users by name, and numbers still work.
fn read(root: &Path, file: &str) -> String {
    std::fs::read(root.join(file))
        .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
        .unwrap_or_default()
}

fn unknown(wanted: &str) -> ApiError {
    ApiError::new(
        ErrorCode::ExecUser,
        format!("the image has no user `{wanted}`"),
        "use a name of its /etc/passwd, a UID, or UID:GID",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image() -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir(root.path().join("etc")).unwrap();
        let passwd =
            "root:x:0:0:root:/root:/bin/bash\nbroken line\nann:x:1000:1001:A,,:/home/ann:/bin/sh\n";
        std::fs::write(root.path().join("etc/passwd"), passwd).unwrap();
        let group = "root:x:0:\nann:x:1001:\nvideo:x:44:bob,ann\nannex:x:9:annie\n";
        std::fs::write(root.path().join("etc/group"), group).unwrap();
        root
    }

    #[test]
    fn b209_names_and_numbers_are_users() {
        let root = image();
        let ann = User {
            name: Some("ann".to_owned()),
            uid: 1000,
            gid: 1001,
            groups: vec![44, 1001],
            home: "/home/ann".to_owned(),
        };
        assert_eq!(User::look_up(root.path(), "ann").unwrap(), ann);
        assert_eq!(User::look_up(root.path(), "1000").unwrap(), ann);
        let number = User::look_up(root.path(), "4242").unwrap();
        assert_eq!(
            (number.uid, number.gid, number.home.as_str()),
            (4242, 4242, "/")
        );
        let pair = User::look_up(root.path(), "1000:50").unwrap();
        assert_eq!((pair.uid, pair.gid, pair.groups), (1000, 50, vec![50]));
    }

    #[test]
    fn a_user_that_is_not_there_is_an_error() {
        let root = image();
        for wanted in ["bob", "", "ann:x", "-1"] {
            let error = User::look_up(root.path(), wanted).unwrap_err();
            assert_eq!(error.code, ErrorCode::ExecUser, "{wanted}");
        }
    }
}
