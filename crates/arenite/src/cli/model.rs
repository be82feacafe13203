//! Arguments of `arenite model`.

use std::str::FromStr;

use arenite_model::ModelRouteName;
use clap::{Args, Subcommand};

use super::{Format, ListOutput, Output, Server};

#[derive(Debug, Subcommand)]
pub(crate) enum ModelCommand {
    /// Add a route to models, or replace it
    Set(ModelSetArgs),
    /// List routes to models
    Ls(ModelLsArgs),
    /// Show a route with what it used
    Show(ModelShowArgs),
    /// Remove routes with what they used
    Rm(ModelRmArgs),
}

/// A price: `MODELS=INPUT,OUTPUT[,CACHED]`.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct PriceOf {
    pub(crate) models: String,
    pub(crate) input: f64,
    pub(crate) output: f64,
    pub(crate) cached: Option<f64>,
}

impl FromStr for PriceOf {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let bad = || format!("{text:?} is no price: write models and dollars for a million tokens, such as gpt-*=2.5,10");
        let (models, prices) = text.rsplit_once('=').ok_or_else(bad)?;
        let prices: Vec<f64> = prices.split(',').map(str::parse).collect::<Result<_, _>>().map_err(|_| bad())?;
        let (input, output, cached) = match prices[..] {
            [input, output] => (input, output, None),
            [input, output, cached] => (input, output, Some(cached)),
            _ => return Err(bad()),
        };
        Ok(Self { models: models.to_owned(), input, output, cached })
    }
}

#[derive(Debug, Args)]
#[command(after_help = "\
Clients of OpenAI's API use the base URL http://SERVER/models/NAME/v1, and clients of Anthropic's http://SERVER/models/NAME, with
a key of the server as API key. With /models/NAME/sandbox/SANDBOX or /models/NAME/worker/WORKER in the place of /models/NAME, the
calls are steps of this sandbox or worker. The route keeps what it used, and all that is not named is unset.

Examples:
  arenite model set main --upstream https://api.example.org/v1 --secret model-key
  arenite model set claude --upstream https://api.example.com/v1 --dialect anthropic --secret other-key
  arenite model set main --upstream http://127.0.0.1:8000/v1 --models 'llama-*' --each-tokens 200000 --rate 60
  arenite model set main --upstream https://api.example.org/v1 --price 'gpt-*=2.5,10,1.25' --budget-usd 20")]
pub(crate) struct ModelSetArgs {
    /// Name of the route
    pub(crate) name: ModelRouteName,
    /// Base URL of the upstream with its version; its host has a public address, unless model_allow of the server names others
    #[arg(long, value_name = "URL")]
    pub(crate) upstream: String,
    /// API of the upstream: openai or anthropic
    #[arg(long, value_name = "DIALECT", default_value = "openai", value_parser = ["openai", "anthropic"])]
    pub(crate) dialect: String,
    /// Secret with the upstream's key
    #[arg(long, value_name = "NAME")]
    pub(crate) secret: Option<String>,
    /// Allowed models, such as gpt-*; repeatable [default: all]
    #[arg(long, value_name = "PATTERN")]
    pub(crate) models: Vec<String>,
    /// The most tokens that the route may use in all
    #[arg(long, value_name = "N")]
    pub(crate) budget_tokens: Option<u64>,
    /// The most dollars that the route may use in all, by its prices
    #[arg(long, value_name = "DOLLARS")]
    pub(crate) budget_usd: Option<f64>,
    /// The most tokens that each sandbox or worker may use
    #[arg(long, value_name = "N")]
    pub(crate) each_tokens: Option<u64>,
    /// The most dollars that each sandbox or worker may use
    #[arg(long, value_name = "DOLLARS")]
    pub(crate) each_usd: Option<f64>,
    /// Price of models in dollars for a million tokens of input, of output, and of cached input; repeatable
    #[arg(long, value_name = "PATTERN=IN,OUT[,CACHED]")]
    pub(crate) price: Vec<PriceOf>,
    /// The most requests a minute
    #[arg(long, value_name = "N")]
    pub(crate) rate: Option<u32>,
    /// Longest time without a byte of the upstream's answer, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    pub(crate) timeout: u32,
    #[command(flatten)]
    pub(crate) format: Format,
    #[command(flatten)]
    pub(crate) server: Server,
}

#[derive(Debug, Args)]
pub(crate) struct ModelLsArgs {
    #[command(flatten)]
    pub(crate) output: ListOutput,
    #[command(flatten)]
    pub(crate) server: Server,
}

#[derive(Debug, Args)]
pub(crate) struct ModelShowArgs {
    /// Name of the route
    pub(crate) name: ModelRouteName,
    #[command(flatten)]
    pub(crate) output: Output,
    #[command(flatten)]
    pub(crate) server: Server,
}

#[derive(Debug, Args)]
pub(crate) struct ModelRmArgs {
    /// Names of the routes
    #[arg(required = true)]
    pub(crate) names: Vec<ModelRouteName>,
    #[command(flatten)]
    pub(crate) server: Server,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_price_has_two_or_three_numbers() {
        let price = |input, output, cached| PriceOf { models: "gpt-*".to_owned(), input, output, cached };
        assert_eq!("gpt-*=2.5,10".parse(), Ok(price(2.5, 10.0, None)));
        assert_eq!("gpt-*=2.5,10,1.25".parse(), Ok(price(2.5, 10.0, Some(1.25))));
        for bad in ["gpt-*", "gpt-*=1", "gpt-*=1,2,3,4", "gpt-*=a,b", "=,"] {
            assert!(bad.parse::<PriceOf>().is_err(), "{bad}");
        }
    }
}
