//! Arguments of `ls` and `inspect`.

use arenite_model::{GroupName, ImageName, NodeName, SandboxId, SandboxName, SandboxState, TenantId};
use clap::Args;

use super::{ListOutput, Output, Server};
use crate::client::encoded;

#[derive(Debug, Args)]
#[command(after_help = "\
Running sandboxes come first, and of each state the newest.

Examples:
  arenite ls
  arenite ls --json | jq -r '.sandboxes[].name'
  arenite ls -q                        print names only
  arenite ls -o '{{.name}}\\t{{.spec.image}}\\t{{.state}}'
  arenite ls --watch                   show changes as they come
  arenite ls --state running --state paused --label team=red
  arenite ls --newest --image code")]
pub(crate) struct LsArgs {
    /// Print names only; the same as -o name
    #[arg(long, short, conflicts_with_all = ["json", "output"])]
    pub(crate) quiet: bool,
    /// Only sandboxes in this state; may be repeated
    #[arg(long, value_name = "STATE")]
    state: Vec<SandboxState>,
    /// Only sandboxes with this label, or with any value of it; may be repeated
    #[arg(long, value_name = "KEY[=VALUE]")]
    label: Vec<String>,
    /// Only sandboxes of this template
    #[arg(long, value_name = "NAME")]
    template: Option<String>,
    /// Only sandboxes of this image
    #[arg(long, value_name = "IMAGE")]
    image: Option<ImageName>,
    /// Only sandboxes of this group
    #[arg(long, value_name = "GROUP")]
    group: Option<GroupName>,
    /// Only sandboxes of this node
    #[arg(long, value_name = "NODE")]
    node: Option<NodeName>,
    /// Sandboxes of this tenant instead of the key's; for operators
    #[arg(long, value_name = "TENANT")]
    tenant: Option<TenantId>,
    /// Only sandboxes with this client tag
    #[arg(long, value_name = "TAG")]
    client_tag: Option<String>,
    /// Only sandboxes that the agent in this one created
    #[arg(long, value_name = "ID")]
    parent: Option<SandboxId>,
    /// Only sandboxes with a name that starts with this
    #[arg(long, value_name = "TEXT")]
    name_prefix: Option<String>,
    /// Only sandboxes with all of these words in their name, id, image, state, template, group, or labels
    #[arg(long, value_name = "WORDS")]
    search: Option<String>,
    /// The newest first, whatever their state
    #[arg(long)]
    pub(crate) newest: bool,
    #[command(flatten)]
    pub(crate) output: ListOutput,
    #[command(flatten)]
    pub(crate) server: Server,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Prints JSON, unless -o selects another form. With -o table, each field has the name that templates know it by.

Examples:
  arenite inspect demo
  arenite inspect demo -o table
  arenite inspect demo -o '{{.spec.image}}'
  arenite inspect one two | jq -r '.[].urls.path'")]
pub(crate) struct SandboxInspectArgs {
    /// The sandboxes
    #[arg(required = true)]
    pub(crate) sandboxes: Vec<SandboxName>,
    #[command(flatten)]
    pub(crate) output: Output,
    #[command(flatten)]
    pub(crate) server: Server,
}

impl LsArgs {
    /// The query that selects and sorts; empty for all sandboxes.
    pub(crate) fn query(&self) -> String {
        let states = self.state.iter().map(|state| ("state", state.as_str()));
        let labels = self.label.iter().map(|label| ("label", label.as_str()));
        let single = [
            ("template", self.template.as_deref()),
            ("image", self.image.as_ref().map(ImageName::as_str)),
            ("group", self.group.as_ref().map(GroupName::as_str)),
            ("node", self.node.as_ref().map(NodeName::as_str)),
            ("tenant", self.tenant.as_ref().map(TenantId::as_str)),
            ("client_tag", self.client_tag.as_deref()),
            ("parent", self.parent.as_ref().map(SandboxId::as_str)),
            ("name_prefix", self.name_prefix.as_deref()),
            ("search", self.search.as_deref()),
            ("order", self.newest.then_some("newest")),
        ];
        let single = single.into_iter().filter_map(|(name, value)| Some((name, value?)));
        states.chain(labels).chain(single).map(|(name, value)| format!("{name}={}", encoded(value))).collect::<Vec<_>>().join("&")
    }
}
