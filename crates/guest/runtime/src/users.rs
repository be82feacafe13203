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

    /// Gives a user without a directory that it could write to a home below `/home`.
    #[must_use]
    pub fn with_home(mut self) -> Self {
        if self.uid != 0 && HOMELESS.iter().any(|home| self.home.as_os_str() == *home) {
            let name = if self.name.contains('/') { self.uid.to_string() } else { self.name.clone() };
            self.home = PathBuf::from("/home").join(name);
        }
        self
    }

    /// Finds a user by name.
    pub fn find(name: &str) -> Option<Self> {
        Self::parse(name, &read("/etc/passwd"), &read("/etc/group"))
    }

    /// Finds the user of an image's configuration: `user` or `user:group`, each a name or a number. A number needs no line in
    /// `/etc/passwd`.
    pub fn configured(text: &str) -> Option<Self> {
        Self::parse_configured(text, &read("/etc/passwd"), &read("/etc/group"))
    }

    fn parse_configured(text: &str, passwd: &str, group: &str) -> Option<Self> {
        let (name, group_name) = text.split_once(':').map_or((text, None), |(name, group)| (name, Some(group)));
        let id = |text: &str| text.parse::<u32>().ok().filter(|id| *id <= MAX_ID);
        let mut user = Self::parse(name, passwd, group).or_else(|| {
            let uid = id(name)?;
            let known = passwd.lines().find(|line| line.split(':').nth(2) == Some(name)).and_then(|line| line.split(':').next());
            known.and_then(|known| Self::parse(known, passwd, group)).or_else(|| {
                let (name, home) = if uid == 0 { ("root", "/root") } else { (name, "/") };
                let (name, home) = (name.to_owned(), home.into());
                Some(Self { name, uid, gid: 0, groups: vec![0], home, shell: "/bin/sh".to_owned() })
            })
        })?;
        if let Some(wanted) = group_name.filter(|wanted| !wanted.is_empty()) {
            let named = group.lines().map(|line| line.split(':').collect::<Vec<_>>()).find(|f| f.len() >= 3 && f[0] == wanted);
            user.gid = named.map_or_else(|| id(wanted), |fields| fields[2].parse().ok())?;
            // As Docker does: with a group, the user has only this one.
            user.groups = vec![user.gid];
        }
        Some(user)
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

/// Homes of users that are not meant to have one, and of those without a line in `/etc/passwd`.
const HOMELESS: [&str; 4] = ["/", "/nonexistent", "/dev/null", "/var/empty"];
/// The highest id of a sandbox.
const MAX_ID: u32 = 65_535;

/// A file of the image, which may lack it.
fn read(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
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

    #[test]
    fn an_images_user_is_a_name_or_a_number_with_or_without_a_group() {
        let passwd = "root:x:0:0::/root:/bin/bash\napp:x:101:102::/srv:\n";
        let group = "app:x:102:\nextra:x:7:app\n";
        for (text, expected) in [
            ("app", Some(("app", 101, 102, vec![7, 102]))),
            ("101", Some(("app", 101, 102, vec![7, 102]))),
            ("app:extra", Some(("app", 101, 7, vec![7]))),
            ("101:9", Some(("app", 101, 9, vec![9]))),
            ("5000", Some(("5000", 5000, 0, vec![0]))),
            ("5000:app", Some(("5000", 5000, 102, vec![102]))),
            ("0", Some(("root", 0, 0, vec![0]))),
            ("nobody", None),
            ("app:nobody", None),
            ("65536", None),
            ("app:65536", None),
            ("-1", None),
            ("", None),
        ] {
            let found = User::parse_configured(text, passwd, group);
            let found = found.as_ref().map(|user| (user.name.as_str(), user.uid, user.gid, user.groups.clone()));
            assert_eq!(found, expected, "{text}");
        }
        let home = |text| User::parse_configured(text, "web:x:33:33::/nonexistent:\n", "").unwrap().with_home().home;
        let homes = ["1000", "web", "0"].map(home);
        assert_eq!(homes, ["/home/1000", "/home/web", "/root"].map(std::path::PathBuf::from));
        assert_eq!(User::parse_configured("0", "", "").map(|user| user.name).as_deref(), Some("root"));
    }
}
