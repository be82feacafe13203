//! Arguments of `arenite events` and `webhook`.

use arenite_control::EventKind;
use arenite_control::webhooks::DeliveryState;
use arenite_model::WebhookId;
use clap::{Args, Subcommand};

use super::{Format, ListOutput, Output, Server};

#[derive(Debug, Args)]
#[command(after_help = "\
Types: sandbox.creating, sandbox.claimed, sandbox.created, sandbox.create_failed, sandbox.paused, sandbox.resumed, sandbox.died,
sandbox.started, sandbox.extended, sandbox.changed, sandbox.adopted, sandbox.deleting and sandbox.deleted. The server keeps the
latest events until it stops.

Examples:
  arenite events
  arenite events --follow --sandbox demo
  arenite events --follow --type sandbox.died --label team=red
  arenite events --follow --json | jq -r .sandbox.name         print a line of JSON for each event")]
pub(crate) struct EventsArgs {
    /// Go on with events as they come
    #[arg(long, short)]
    pub(crate) follow: bool,
    /// Only events of this sandbox, by its name or id; repeatable
    #[arg(long, short, value_name = "NAME")]
    pub(crate) sandbox: Vec<String>,
    /// Only events of sandboxes with this label; repeatable
    #[arg(long, short, value_name = "KEY=VALUE")]
    pub(crate) label: Vec<String>,
    /// Only events of this type; repeatable
    #[arg(long = "type", short = 't', value_name = "TYPE")]
    pub(crate) kind: Vec<EventKind>,
    /// Only events after this one
    #[arg(long, value_name = "ID")]
    pub(crate) after: Option<String>,
    #[command(flatten)]
    pub(crate) output: Output,
    #[command(flatten)]
    pub(crate) server: Server,
}

#[derive(Debug, Subcommand)]
pub(crate) enum WebhookCommand {
    /// Create a webhook and print its secret once
    Create(WebhookCreateArgs),
    /// List webhooks
    Ls(WebhookLsArgs),
    /// Remove webhooks with their deliveries
    Rm(WebhookRmArgs),
    /// Send a test to a webhook
    Test(WebhookTestArgs),
    /// List a webhook's deliveries
    Deliveries(WebhookDeliveriesArgs),
    /// Deliver an event again
    Redeliver(WebhookRedeliverArgs),
}

#[derive(Debug, Args)]
#[command(after_help = "\
Events are sent as POST requests with JSON, and signed as https://www.standardwebhooks.com specifies. Any answer with a status
from 200 to 299 accepts one; others are repeated for a day. Only the secret is printed to stdout.

Examples:
  arenite webhook create https://example.org/hook
  arenite webhook create https://example.org/hook --type sandbox.died --type sandbox.deleted")]
pub(crate) struct WebhookCreateArgs {
    /// An http or https URL; its host has a public address, unless webhook_allow of the server names others
    pub(crate) url: String,
    /// Only events of this type; repeatable [default: all]
    #[arg(long = "type", short = 't', value_name = "TYPE")]
    pub(crate) kind: Vec<EventKind>,
    #[command(flatten)]
    pub(crate) format: Format,
    #[command(flatten)]
    pub(crate) server: Server,
}

#[derive(Debug, Args)]
pub(crate) struct WebhookLsArgs {
    #[command(flatten)]
    pub(crate) output: ListOutput,
    #[command(flatten)]
    pub(crate) server: Server,
}

#[derive(Debug, Args)]
pub(crate) struct WebhookRmArgs {
    /// Ids of the webhooks
    #[arg(required = true)]
    pub(crate) ids: Vec<WebhookId>,
    #[command(flatten)]
    pub(crate) server: Server,
}

#[derive(Debug, Args)]
#[command(after_help = "\
The test is an event of the type webhook.test. It is sent once, and not listed. The exit code is 1 if it was not delivered.")]
pub(crate) struct WebhookTestArgs {
    /// Id of the webhook
    pub(crate) id: WebhookId,
    #[command(flatten)]
    pub(crate) format: Format,
    #[command(flatten)]
    pub(crate) server: Server,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  arenite webhook deliveries w3k9x0qz7a2m
  arenite webhook deliveries w3k9x0qz7a2m --state dead
  arenite webhook redeliver w3k9x0qz7a2m 17        deliver one again, by its number")]
pub(crate) struct WebhookDeliveriesArgs {
    /// Id of the webhook
    pub(crate) id: WebhookId,
    /// Only deliveries in this state: pending, delivered or dead
    #[arg(long, value_name = "STATE")]
    pub(crate) state: Option<DeliveryState>,
    /// Maximum number of deliveries, the newest first
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) limit: u32,
    #[command(flatten)]
    pub(crate) output: ListOutput,
    #[command(flatten)]
    pub(crate) server: Server,
}

#[derive(Debug, Args)]
pub(crate) struct WebhookRedeliverArgs {
    /// Id of the webhook
    pub(crate) id: WebhookId,
    /// Numbers of the deliveries
    #[arg(required = true)]
    pub(crate) numbers: Vec<u64>,
    #[command(flatten)]
    pub(crate) server: Server,
}
