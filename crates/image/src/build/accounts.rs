//! The image's users and groups.

/// One line of `/etc/passwd` or `/etc/group`.
pub(super) struct Account<'a> {
    pub(super) name: &'a str,
    pub(super) id: u32,
    /// For a user: the primary group.
    pub(super) group: Option<u32>,
}

pub(super) fn accounts(text: &str) -> impl Iterator<Item = Account<'_>> {
    text.lines().filter_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next().filter(|n| !n.is_empty())?;
        let id = number(fields.nth(1)?)?;
        let group = fields.next().and_then(number);
        Some(Account { name, id, group })
    })
}

/// Parses an id within a sandbox's 65,536.
pub(super) fn number(text: &str) -> Option<u32> {
    text.parse().ok().filter(|id| *id < 65_536)
}
