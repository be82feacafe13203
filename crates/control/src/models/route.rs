//! A route to models: where it leads, what it allows, and what it costs.

use arenite_model::{ModelRouteName, SecretName, TenantId};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::ModelUse;
use crate::ControlError;

/// The most patterns and prices of a route, and the longest pattern in bytes.
const MOST: usize = 64;
const MAX_PATTERN: usize = 200;
/// The longest time without a byte of an answer, in seconds.
const MAX_TIMEOUT: u32 = 3600;
const DEFAULT_TIMEOUT: u32 = 600;
const MAX_RATE: u32 = 1_000_000;
/// The largest budget and price in dollars. Beyond it, cents would be rounded away.
const MAX_DOLLARS: f64 = 1e9;

/// The API that the upstream speaks, and the clients of the route with it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum ModelDialect {
    #[default]
    Openai,
    Anthropic,
}

impl ModelDialect {
    pub fn name(self) -> &'static str {
        match self {
            Self::Openai => "openai",
            Self::Anthropic => "anthropic",
        }
    }
}

/// Limits of what a route may use in all. Absent or null: no limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ModelBudget {
    /// Tokens of requests and answers together.
    pub tokens: Option<u64>,
    /// In dollars, by the prices of the route.
    pub cost_usd: Option<f64>,
}

/// The price of some models, in dollars for a million tokens.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ModelPrice {
    /// A pattern of names, such as `gpt-*`. The first price that fits a model applies.
    pub models: String,
    pub input: f64,
    pub output: f64,
    /// For tokens of a request that the upstream had in its cache; absent: as `input`.
    #[serde(default)]
    pub cached: Option<f64>,
}

/// A model route, as a client sets it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ModelRouteSpec {
    /// The base URL of the upstream with its version, such as `https://models.example.org/v1`.
    #[schema(required)]
    pub upstream: String,
    pub dialect: ModelDialect,
    /// The tenant's secret that has the upstream's key; absent: it needs none.
    #[schema(value_type = Option<String>)]
    pub secret: Option<SecretName>,
    /// Patterns of the allowed models, such as `gpt-*`; empty: all.
    pub models: Vec<String>,
    /// For the route as a whole.
    pub budget: ModelBudget,
    /// For each sandbox, with those that its agent creates, and for each worker.
    pub budget_each: ModelBudget,
    pub prices: Vec<ModelPrice>,
    /// Of all callers together.
    pub requests_per_minute: Option<u32>,
    /// The longest time without a byte of the upstream's answer, from 1 to 3600; 600 by default.
    pub timeout_seconds: u32,
}

impl Default for ModelRouteSpec {
    fn default() -> Self {
        Self {
            upstream: String::new(),
            dialect: ModelDialect::default(),
            secret: None,
            models: Vec::new(),
            budget: ModelBudget::default(),
            budget_each: ModelBudget::default(),
            prices: Vec::new(),
            requests_per_minute: None,
            timeout_seconds: DEFAULT_TIMEOUT,
        }
    }
}

/// A tenant's route to models.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelRoute {
    pub tenant: TenantId,
    pub name: ModelRouteName,
    pub spec: ModelRouteSpec,
    pub created_at: Timestamp,
    pub changed_at: Timestamp,
}

impl ModelRouteSpec {
    pub(super) fn check(&self) -> Result<(), ControlError> {
        let refuse = |reason: String| Err(ControlError::InvalidModelRoute { reason });
        if self.upstream.is_empty() {
            return refuse("upstream is missing: the base URL, such as https://models.example.org/v1".to_owned());
        }
        if self.models.len() > MOST || self.prices.len() > MOST {
            return refuse(format!("there are at most {MOST} models and {MOST} prices"));
        }
        let patterns = self.models.iter().chain(self.prices.iter().map(|price| &price.models));
        for pattern in patterns {
            if pattern.is_empty() || pattern.len() > MAX_PATTERN || pattern.contains(char::is_control) {
                return refuse(format!("a pattern of models has 1 to {MAX_PATTERN} bytes, without control characters"));
            }
        }
        let budgets = [self.budget.cost_usd, self.budget_each.cost_usd];
        let prices = self.prices.iter().flat_map(|price| [Some(price.input), Some(price.output), price.cached]);
        if !budgets.into_iter().chain(prices).flatten().all(|dollars| (0.0..=MAX_DOLLARS).contains(&dollars)) {
            return refuse(format!("dollars are from 0 to {MAX_DOLLARS}"));
        }
        if budgets.iter().any(Option::is_some) && self.prices.is_empty() {
            return refuse("a budget in money needs prices".to_owned());
        }
        if self.requests_per_minute.is_some_and(|rate| !(1..=MAX_RATE).contains(&rate)) {
            return refuse(format!("requests_per_minute is from 1 to {MAX_RATE}"));
        }
        if !(1..=MAX_TIMEOUT).contains(&self.timeout_seconds) {
            return refuse(format!("timeout_seconds is from 1 to {MAX_TIMEOUT}"));
        }
        Ok(())
    }

    pub(super) fn has_cost_budget(&self) -> bool {
        self.budget.cost_usd.is_some() || self.budget_each.cost_usd.is_some()
    }

    pub fn allows(&self, model: &str) -> bool {
        self.models.is_empty() || self.models.iter().any(|pattern| fits(pattern, model))
    }

    fn price(&self, model: &str) -> Option<&ModelPrice> {
        self.prices.iter().find(|price| fits(&price.models, model))
    }

    pub fn has_price(&self, model: &str) -> bool {
        self.price(model).is_some()
    }

    /// What tokens of a model cost in dollars; 0 without a price.
    pub fn cost(&self, model: &str, used: &ModelUse) -> f64 {
        let Some(price) = self.price(model) else { return 0.0 };
        let cached = used.cached_tokens.min(used.prompt_tokens);
        let fresh = used.prompt_tokens - cached;
        let millionths = fresh as f64 * price.input
            + cached as f64 * price.cached.unwrap_or(price.input)
            + used.completion_tokens as f64 * price.output;
        millionths / 1e6
    }
}

/// Whether a name fits a pattern, in which `*` stands for any characters.
fn fits(pattern: &str, name: &str) -> bool {
    let Some((first, rest)) = pattern.split_once('*') else { return pattern == name };
    let Some(mut name) = name.strip_prefix(first) else { return false };
    let mut parts: Vec<&str> = rest.split('*').collect();
    let last = parts.pop().unwrap_or_default();
    for part in parts {
        let Some(at) = name.find(part) else { return false };
        name = &name[at + part.len()..];
    }
    name.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_fit_whole_names() {
        for (pattern, name, wanted) in [
            ("gpt-4o", "gpt-4o", true),
            ("gpt-4o", "gpt-4o-mini", false),
            ("gpt-*", "gpt-4o-mini", true),
            ("gpt-*", "my-gpt-4o", false),
            ("*-mini", "gpt-4o-mini", true),
            ("g*-4*i", "gpt-4o-mini", true),
            ("g*-4*i", "gpt-4o", false),
            ("a*a", "a", false),
            ("*", "", true),
        ] {
            assert_eq!(fits(pattern, name), wanted, "{pattern} {name}");
        }
    }

    #[test]
    fn tokens_cost_what_the_first_price_that_fits_says() {
        let price = |models: &str, input, cached| ModelPrice { models: models.to_owned(), input, output: 10.0, cached };
        let prices = vec![price("a-*", 1.0, Some(0.5)), price("*", 2.0, None)];
        let spec = ModelRouteSpec { prices, ..ModelRouteSpec::default() };
        let used =
            ModelUse { prompt_tokens: 1_000_000, cached_tokens: 400_000, completion_tokens: 100_000, ..ModelUse::default() };
        assert!((spec.cost("a-1", &used) - 1.8).abs() < 1e-9);
        assert!((spec.cost("b", &used) - 3.0).abs() < 1e-9);
    }

    #[test]
    fn what_can_not_work_is_refused() {
        let good = ModelRouteSpec { upstream: "https://a.example/v1".to_owned(), ..ModelRouteSpec::default() };
        good.check().unwrap();
        let dollars = |cost_usd| ModelBudget { cost_usd: Some(cost_usd), tokens: None };
        let price = |input| vec![ModelPrice { models: "*".to_owned(), input, output: 1.0, cached: None }];
        for bad in [
            ModelRouteSpec { upstream: String::new(), ..good.clone() },
            ModelRouteSpec { models: vec![String::new()], ..good.clone() },
            ModelRouteSpec { budget: dollars(1.0), ..good.clone() },
            ModelRouteSpec { budget: dollars(-1.0), prices: price(1.0), ..good.clone() },
            ModelRouteSpec { prices: price(f64::NAN), ..good.clone() },
            ModelRouteSpec { requests_per_minute: Some(0), ..good.clone() },
            ModelRouteSpec { timeout_seconds: 0, ..good.clone() },
        ] {
            assert!(bad.check().is_err(), "{bad:?}");
        }
        ModelRouteSpec { budget_each: dollars(1.0), prices: price(0.0), ..good }.check().unwrap();
    }
}
