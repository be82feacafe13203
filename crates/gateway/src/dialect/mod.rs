//! Other systems' wire formats, one file each: they translate, and `control` does the work.

pub(crate) mod agent_sandbox;
pub(crate) mod agentflow;
pub(crate) mod mcp;
mod mcp_files;
mod mcp_states;
mod quantity;
