//! Users of the sandbox, from its `/etc/passwd` and `/etc/group`.

use std::path::PathBuf;

/// One user of the sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct User {
    pub name: String,
    pub uid: u32,
    pub gid: u32,
    /// All groups, including the primary one.
    pub groups: Vec<u32>,
    pub home: PathBuf,
    pub shell: String,
}

impl User {
    /// Root, even if the image has no `/etc/passwd`.
    pub fn root() -> Self {
        Self::find("root").unwrap_or_else(|| Self {
            name: "root".to_owned(),
            uid: 0,
            gid: 0,
            groups: vec![0],
            home: "/root".into(),
            shell: "/bin/sh".to_owned(),
        })
    }

    /// Finds a user by name.
    pub fn find(name: &str) -> Option<Self> {
        Self::parse(
            name,
            &std::fs::read_to_string("/etc/passwd").ok()?,
            &std::fs::read_to_string("/etc/group").unwrap_or_default(),
        )
    }

    fn parse(name: &str, passwd: &str, group: &str) -> Option<Self> {
        let fields: Vec<&str> =
            passwd.lines().map(|l| l.split(':').collect()).find(|f: &Vec<&str>| f.len() >= 7 && f[0] == name)?;
        let gid = fields[3].parse().ok()?;
        let mut groups: Vec<u32> = group
            .lines()
            .filter_map(|line| {
                let f: Vec<&str> = line.split(':').collect();
                let member = f.len() >= 4 && f[3].split(',').any(|m| m == name);
                member.then(|| f[2].parse().ok()).flatten()
            })
            .collect();
        if !groups.contains(&gid) {
            groups.push(gid);
        }
        let shell = if fields[6].is_empty() { "/bin/sh" } else { fields[6] };
        Some(Self {
            name: name.to_owned(),
            uid: fields[2].parse().ok()?,
            gid,
            groups,
            home: if fields[5].is_empty() { "/".into() } else { fields[5].into() },
            shell: shell.to_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::User;

    #[test]
    fn a_user_has_its_groups_and_defaults() {
        let user = User::parse(
            "gem",
            "root:x:0:0::/root:/bin/bash\nbroken\ngem:x:1000:1000::/home/gem:\n",
            "sudo:x:27:a,gem\ngem:x:1000:\nother:x:5:gemma\n",
        )
        .unwrap();
        assert_eq!((user.uid, user.groups, user.shell.as_str()), (1000, vec![27, 1000], "/bin/sh"));
        assert_eq!(User::parse("nobody", "gem:x:1:1::/:\n", ""), None);
    }
}
