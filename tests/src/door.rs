//! A door that lets in who has an access token (OAuth 2). A token is good for one call; a new one is got
//! with a refresh token, which is good for once as well and comes with its successor (RFC 9700, 4.14.2).

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::{Result, anyhow};
use axum::extract::{Form, Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Json, Router};
use serde::Deserialize;
use serde_json::json;

/// Who may come in.
pub struct Door {
    first: String,
    state: Mutex<Known>,
}

struct Known {
    access: HashSet<String>,
    refresh: String,
    granted: usize,
    refused: usize,
}

impl Door {
    /// A door that nobody has a token for yet, but [`Self::first`] gets one.
    pub fn new() -> Result<Self> {
        let first = secret("rt_")?;
        Ok(Self {
            first: first.clone(),
            state: Mutex::new(Known {
                access: HashSet::new(),
                refresh: first,
                granted: 0,
                refused: 0,
            }),
        })
    }

    /// The first refresh token, as a login would have given it.
    pub fn first(&self) -> &str {
        &self.first
    }

    /// Access tokens that were given out, and requests for one that were refused.
    pub fn refreshes(&self) -> (usize, usize) {
        let known = self.lock();
        (known.granted, known.refused)
    }

    /// `router` behind the door, and `POST /oauth/token` beside it.
    pub(crate) fn before(door: &Arc<Self>, router: Router) -> Router {
        router.layer(from_fn_with_state(door.clone(), admit)).merge(
            Router::new()
                .route("/oauth/token", post(refresh))
                .with_state(door.clone()),
        )
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Letters and digits that nobody guesses.
fn secret(prefix: &str) -> Result<String> {
    let mut bytes = [0; 24];
    getrandom::fill(&mut bytes).map_err(|e| anyhow!("no randomness for a token: {e}"))?;
    Ok(format!("{prefix}{}", hex::encode(bytes)))
}

async fn admit(State(door): State<Arc<Door>>, request: Request, next: Next) -> Response {
    let shown = request.headers().get(header::AUTHORIZATION);
    let shown = shown.and_then(|value| value.to_str().ok()?.strip_prefix("Bearer "));
    let known = shown.is_some_and(|token| door.lock().access.remove(token));
    if known {
        return next.run(request).await;
    }
    let challenge = [(header::WWW_AUTHENTICATE, r#"Bearer error="invalid_token""#)];
    let problem = Json(json!({"error": "invalid_token"}));
    (StatusCode::UNAUTHORIZED, challenge, problem).into_response()
}

#[derive(Deserialize)]
struct Wish {
    grant_type: String,
    refresh_token: String,
}

async fn refresh(State(door): State<Arc<Door>>, Form(wish): Form<Wish>) -> Response {
    let (Ok(access), Ok(next)) = (secret("at_"), secret("rt_")) else {
        return StatusCode::INTERNAL_SERVER_ERROR.into_response();
    };
    let mut known = door.lock();
    if wish.grant_type != "refresh_token" || wish.refresh_token != known.refresh {
        known.refused += 1;
        let problem = Json(json!({"error": "invalid_grant"}));
        return (StatusCode::BAD_REQUEST, problem).into_response();
    }
    known.granted += 1;
    known.refresh.clone_from(&next);
    known.access.insert(access.clone());
    let answer = json!({
        "access_token": access, "token_type": "Bearer", "expires_in": 60, "refresh_token": next,
    });
    let headers = [(header::CACHE_CONTROL, "no-store")];
    (headers, Json(answer)).into_response()
}
