//! What the control API says when it does not do something.

use super::pipeline::PipelineError;
use crate::control::{ApiError, ErrorCode};
use crate::effect::LogError;
use crate::lineage::TargetError;
use crate::words::AgentName;

/// An API error that a log error can turn into.
pub(super) struct ServiceError(pub(super) ApiError);

impl From<LogError> for ServiceError {
    fn from(e: LogError) -> Self {
        Self(log_error(e))
    }
}

impl From<ServiceError> for ApiError {
    fn from(e: ServiceError) -> Self {
        e.0
    }
}

pub(super) fn error(code: ErrorCode, error: String) -> ApiError {
    ApiError { error, code }
}

pub(super) fn bad(sentence: &str) -> ApiError {
    error(ErrorCode::BadRequest, sentence.into())
}

pub(super) fn forbidden(sentence: &str) -> ApiError {
    error(ErrorCode::Forbidden, sentence.into())
}

pub(super) fn not_found(sentence: String) -> ApiError {
    error(ErrorCode::NotFound, sentence)
}

pub(super) fn log_error(e: LogError) -> ApiError {
    error(ErrorCode::Unavailable, e.to_string())
}

pub(super) fn unknown_agent(agent: &AgentName) -> ApiError {
    not_found(TargetError::UnknownAgent(agent.clone()).to_string())
}

pub(super) fn target_error(e: TargetError) -> ApiError {
    not_found(e.to_string())
}

pub(super) fn pipeline_error(e: PipelineError) -> ApiError {
    match e {
        PipelineError::Log(e) => log_error(e),
        PipelineError::NotFound(sentence) => not_found(sentence),
        PipelineError::Conflict(sentence) => error(ErrorCode::Conflict, sentence),
    }
}
