//! Arguments of `arenite tenant`, `key` and `audit`.

use arenite_control::tenants::{Binding, Role};
use arenite_model::{KeyId, TenantId};
use clap::{Args, Subcommand, ValueEnum};
use jiff::Timestamp;

use super::{Format, ListOutput, Output, Server};
use crate::config::values::{LimitOf, MinTier, Span};

#[derive(Debug, Subcommand)]
pub(crate) enum TenantCommand {
    /// Create a tenant
    Create(TenantCreateArgs),
    /// List tenants
    Ls(TenantLsArgs),
    /// Change a tenant
    Set(TenantSetArgs),
    /// Remove a tenant with its keys
    Rm(TenantRmArgs),
}

#[derive(Debug, Args)]
#[command(after_help = "\
These commands need an operator's key. The first start of 'arenite serve --tenants' prints one.

Examples:
  arenite tenant create acme
  arenite key create --tenant acme --role admin 'key of acme'")]
pub(crate) struct TenantCreateArgs {
    /// Name: lower-case letters, digits and inner hyphens; names of removed tenants can't be used again
    pub(crate) name: TenantId,
    #[command(flatten)]
    pub(crate) format: Format,
    #[command(flatten)]
    pub(crate) server: Server,
}

#[derive(Debug, Args)]
pub(crate) struct TenantLsArgs {
    #[command(flatten)]
    pub(crate) output: ListOutput,
    #[command(flatten)]
    pub(crate) server: Server,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  arenite tenant set acme --disabled true          refuse its keys at once
  arenite tenant set acme --limit sandboxes=50 --limit memory=64GiB
  arenite tenant set acme --limit memory=default   the default of the server's tenant_limit
  arenite tenant set acme --min-tier gvisor        refuse creates with less isolation
  arenite tenant set acme --network-floor @floor.json --network-default allowlist

Limits: sandboxes, creates (concurrent ones), cpu (cores), memory, disk, trajectories (their logs),
requests (a second), timeout (the longest lifetime of a sandbox), volumes, volume-space (the sizes of
volumes). They apply to new requests: what a tenant has already stays.

A network is a mode (open, observe, allowlist or none) or an object with mode, allow and deny. A floor is in
effect at once in all sandboxes of the tenant, whatever their policies allow.")]
#[command(group = clap::ArgGroup::new("change").required(true).multiple(true))]
pub(crate) struct TenantSetArgs {
    /// The tenant
    pub(crate) name: TenantId,
    /// Whether its keys are refused
    #[arg(long, value_name = "BOOL", action = clap::ArgAction::Set, group = "change")]
    pub(crate) disabled: Option<bool>,
    /// Limit to change; repeatable
    #[arg(long, value_name = "NAME=VALUE", value_delimiter = ',', group = "change")]
    pub(crate) limit: Vec<LimitOf>,
    /// The tier that each new sandbox must have: namespace, gvisor or machine; default for the server's tenant_min_tier
    #[arg(long, value_name = "TIER|default", group = "change")]
    pub(crate) min_tier: Option<MinTier>,
    /// The network of creates that name none; @FILE reads it from a file; default: open
    #[arg(long, value_name = "NETWORK|default", group = "change")]
    pub(crate) network_default: Option<String>,
    /// What its sandboxes may reach at most: allowlist, observe, or an object; @FILE reads it from a file; default: no floor
    #[arg(long, value_name = "NETWORK|default", group = "change")]
    pub(crate) network_floor: Option<String>,
    #[command(flatten)]
    pub(crate) format: Format,
    #[command(flatten)]
    pub(crate) server: Server,
}

#[derive(Debug, Args)]
#[command(after_help = "\
A tenant with sandboxes or volumes is removed only with --force. Its trajectories and its rows of the audit log stay.

Examples:
  arenite tenant rm acme
  arenite tenant rm acme --force                   delete its sandboxes too")]
pub(crate) struct TenantRmArgs {
    /// The tenant
    pub(crate) name: TenantId,
    /// Delete its sandboxes and volumes with their files
    #[arg(long, short)]
    pub(crate) force: bool,
    #[command(flatten)]
    pub(crate) format: Format,
    #[command(flatten)]
    pub(crate) server: Server,
}

#[derive(Debug, Subcommand)]
pub(crate) enum KeyCommand {
    /// Create a key and print it once
    Create(KeyCreateArgs),
    /// List keys
    Ls(KeyLsArgs),
    /// Replace a key by a new one with the same rights
    Rotate(KeyRotateArgs),
    /// End keys at once
    Revoke(KeyRevokeArgs),
}

#[derive(Debug, Args)]
#[command(after_help = "\
Roles: read (see sandboxes and their records), use (call them), manage (create and delete them), admin (keys and the audit log).
Each includes the ones before it. Only the key is printed to stdout.

Examples:
  arenite key create --role use agent
  arenite key create --role use --bind demo --expires 30d 'demo for a visitor'
  arenite key create --role manage --bind team=red 'team red'
  arenite key create --tenant acme --role admin 'first key of acme'
  arenite key create --role admin --operator 'second operator'")]
pub(crate) struct KeyCreateArgs {
    /// Name, for people
    pub(crate) name: String,
    /// Role: read, use, manage or admin
    #[arg(long, value_name = "ROLE")]
    pub(crate) role: Role,
    /// Tenant [default: that of the key that creates it]
    #[arg(long, value_name = "TENANT")]
    pub(crate) tenant: Option<TenantId>,
    /// Time until it expires, such as 12h or 30d [default: never]
    #[arg(long, value_name = "TIME")]
    pub(crate) expires: Option<Span>,
    /// Restrict it to a sandbox, or to those with a label; repeatable
    #[arg(long, value_name = "NAME|KEY=VALUE")]
    pub(crate) bind: Vec<Binding>,
    /// Let it manage tenants and act on what belongs to the server
    #[arg(long)]
    pub(crate) operator: bool,
    #[command(flatten)]
    pub(crate) format: Format,
    #[command(flatten)]
    pub(crate) server: Server,
}

#[derive(Debug, Args)]
pub(crate) struct KeyLsArgs {
    /// Tenant [default: that of the key]
    #[arg(long, value_name = "TENANT")]
    pub(crate) tenant: Option<TenantId>,
    #[command(flatten)]
    pub(crate) output: ListOutput,
    #[command(flatten)]
    pub(crate) server: Server,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  arenite key rotate k3w9x0qz7a2m
  arenite key rotate k3w9x0qz7a2m --overlap 1h     accept the old key for another hour")]
pub(crate) struct KeyRotateArgs {
    /// Id of the key: the part after arn_
    pub(crate) id: KeyId,
    /// Time for which the old key is still accepted
    #[arg(long, value_name = "TIME", default_value = "0s")]
    pub(crate) overlap: Span,
    #[command(flatten)]
    pub(crate) format: Format,
    #[command(flatten)]
    pub(crate) server: Server,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Everything that was opened with the key ends too: streams, WebSockets, tickets and browser sessions.

Examples:
  arenite key revoke k3w9x0qz7a2m")]
pub(crate) struct KeyRevokeArgs {
    /// Ids of the keys
    #[arg(required = true)]
    pub(crate) ids: Vec<KeyId>,
    #[command(flatten)]
    pub(crate) format: Format,
    #[command(flatten)]
    pub(crate) server: Server,
}

/// What the rows of a report are sums of.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum ReportGroup {
    Tenant,
    Sandbox,
    Hour,
    Template,
}

impl ReportGroup {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Tenant => "tenant",
            Self::Sandbox => "sandbox",
            Self::Hour => "hour",
            Self::Template => "template",
        }
    }
}

#[derive(Debug, Args)]
#[command(after_help = "\
Reports are sums of whole hours. Memory and disk are what was in use, not the limits. Keys see their own
tenant, and operators see all.

Examples:
  arenite usage
  arenite usage --group sandbox --since 2026-01-31T00:00:00Z
  arenite usage --group hour --csv > usage.csv")]
pub(crate) struct UsageArgs {
    /// What the rows are sums of
    #[arg(long, value_name = "GROUP", value_enum, default_value_t = ReportGroup::Tenant)]
    pub(crate) group: ReportGroup,
    /// Only this tenant
    #[arg(long, value_name = "TENANT")]
    pub(crate) tenant: Option<TenantId>,
    /// From the hour that has this time
    #[arg(long, value_name = "TIME")]
    pub(crate) since: Option<Timestamp>,
    /// Up to the hour that has the moment before this time
    #[arg(long, value_name = "TIME")]
    pub(crate) until: Option<Timestamp>,
    /// Print comma-separated values
    #[arg(long, conflicts_with_all = ["json", "output"])]
    pub(crate) csv: bool,
    #[command(flatten)]
    pub(crate) output: Output,
    #[command(flatten)]
    pub(crate) server: Server,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Admins see their own tenant. Operators see all tenants, and requests without a valid key.

Examples:
  arenite audit
  arenite audit --tenant acme --since 2026-01-31T00:00:00Z
  arenite audit --json | jq -r '.rows[] | select(.outcome != \"ok\")'")]
pub(crate) struct AuditArgs {
    /// Only rows of this tenant
    #[arg(long, value_name = "TENANT")]
    pub(crate) tenant: Option<TenantId>,
    /// Only rows from this time on
    #[arg(long, value_name = "TIME")]
    pub(crate) since: Option<Timestamp>,
    /// Only rows up to this time
    #[arg(long, value_name = "TIME")]
    pub(crate) until: Option<Timestamp>,
    /// Maximum number of rows, the newest first
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) limit: u32,
    /// next_cursor of the JSON before, for older rows
    #[arg(long, value_name = "CURSOR")]
    pub(crate) cursor: Option<String>,
    #[command(flatten)]
    pub(crate) output: Output,
    #[command(flatten)]
    pub(crate) server: Server,
}
