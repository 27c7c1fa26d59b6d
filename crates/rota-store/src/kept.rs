//! What is kept of a write's answer, for whoever asks for it again.
//!
//! The plain answer is kept as nothing. Others are a letter or a few bytes for
//! each item: a busy store keeps them for thousands of runs a second, and reads
//! hardly any.

use rota_core::{
    ids::{JobId, RunId, TenantId},
    run::{Fence, Lease, Status},
    store::{Enqueued, FireItem, Fired, Guarded, Reaped, StoreError},
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use uuid::Uuid;

use crate::codec::corrupt;

/// Bytes of an answer; none is the plain one.
pub type Kept = Option<Vec<u8>>;

/// How lists begin that older SQLite files have under a request's key.
const OLD: &[u8] = b"[";

pub fn json<T: Serialize + ?Sized>(answer: &T) -> Result<Kept, StoreError> {
    serde_json::to_vec(answer).map(Some).map_err(|error| corrupt("an answer to keep", error))
}

pub fn json_again<T: DeserializeOwned>(kept: Option<&[u8]>) -> Result<T, StoreError> {
    serde_json::from_slice(kept.unwrap_or(b"null")).map_err(|error| corrupt("a kept answer", error))
}

/// Nothing when all applied, else a letter each.
pub fn guarded(answers: &[Guarded]) -> Kept {
    let letter = |answer: &Guarded| match answer {
        Guarded::Applied => b'a',
        Guarded::Stale => b's',
        Guarded::CancelAsked => b'c',
    };
    let plain = answers.iter().all(|answer| *answer == Guarded::Applied);
    (!plain).then(|| answers.iter().map(letter).collect())
}

pub fn guarded_again(kept: Option<&[u8]>, count: usize) -> Result<Vec<Guarded>, StoreError> {
    let Some(kept) = kept else { return Ok(vec![Guarded::Applied; count]) };
    if kept.starts_with(OLD) {
        return json_again(Some(kept));
    }
    let answer = |letter: &u8| match letter {
        b'a' => Ok(Guarded::Applied),
        b's' => Ok(Guarded::Stale),
        b'c' => Ok(Guarded::CancelAsked),
        _ => Err(corrupt("a kept answer", letter)),
    };
    kept.iter().map(answer).collect()
}

/// A letter for each; ids that belong to it follow a line each. Nothing when all
/// were made ready and handed over.
pub fn enqueued(answers: &[Enqueued]) -> Kept {
    let plain = Enqueued::Made { status: Status::Queued, handed: true };
    if answers.iter().all(|answer| *answer == plain) {
        return None;
    }
    let mut kept: Vec<u8> = answers.iter().map(letter).collect();
    for answer in answers {
        if let Enqueued::Duplicate { of } | Enqueued::Again { of, .. } = answer {
            kept.push(b'\n');
            kept.extend(of.0.simple().to_string().bytes());
        }
    }
    Some(kept)
}

fn letter(answer: &Enqueued) -> u8 {
    match answer {
        Enqueued::Made { status: Status::Queued, handed: true } => b'h',
        Enqueued::Made { status: Status::Queued, handed: false } => b'q',
        Enqueued::Made { status: Status::Scheduled, .. } => b's',
        Enqueued::Made { .. } => b'b',
        Enqueued::Duplicate { .. } => b'd',
        Enqueued::Full => b'f',
        Enqueued::Again { status, handed, .. } => {
            letter(&Enqueued::Made { status: *status, handed: *handed }).to_ascii_uppercase()
        }
    }
}

pub fn enqueued_again(kept: Option<&[u8]>, count: usize) -> Result<Vec<Enqueued>, StoreError> {
    let made = |status, handed| Enqueued::Made { status, handed };
    let Some(kept) = kept else { return Ok(vec![made(Status::Queued, true); count]) };
    if kept.starts_with(OLD) {
        return json_again(Some(kept));
    }
    let mut lines = kept.split(|byte| *byte == b'\n');
    let letters = lines.next().unwrap_or_default();
    let mut named = || {
        let id = lines.next().and_then(|line| Uuid::try_parse_ascii(line).ok());
        id.map(RunId).ok_or_else(|| corrupt("a kept answer", "an id is missing"))
    };
    let again = |of, status, handed| Enqueued::Again { of, status, handed };
    letters
        .iter()
        .map(|letter| {
            Ok(match letter {
                b'h' => made(Status::Queued, true),
                b'q' => made(Status::Queued, false),
                b's' => made(Status::Scheduled, false),
                b'b' => made(Status::Blocked, false),
                b'f' => Enqueued::Full,
                b'd' => Enqueued::Duplicate { of: named()? },
                b'H' => again(named()?, Status::Queued, true),
                b'Q' => again(named()?, Status::Queued, false),
                b'S' => again(named()?, Status::Scheduled, false),
                b'B' => again(named()?, Status::Blocked, false),
                _ => return Err(corrupt("a kept answer", letter)),
            })
        })
        .collect()
}

/// Of fires: nothing when all fired and all runs were handed over.
#[derive(Serialize, Deserialize)]
struct KeptFires {
    stale: Vec<usize>,
    runs: Option<String>,
}

pub fn fired(answers: &[Fired]) -> Result<Kept, StoreError> {
    let (mut stale, mut made) = (Vec::new(), Vec::new());
    for (n, answer) in answers.iter().enumerate() {
        match answer {
            Fired::Fired(runs) => made.extend_from_slice(runs),
            Fired::Stale => stale.push(n),
        }
    }
    let runs = enqueued(&made).map(|kept| String::from_utf8_lossy(&kept).into_owned());
    if stale.is_empty() && runs.is_none() { Ok(None) } else { json(&KeptFires { stale, runs }) }
}

pub fn fired_again(kept: Option<&[u8]>, items: &[FireItem]) -> Result<Vec<Fired>, StoreError> {
    let KeptFires { stale, runs } = match kept {
        Some(kept) => json_again(Some(kept))?,
        None => KeptFires { stale: Vec::new(), runs: None },
    };
    let fired = |n: usize| stale.binary_search(&n).is_err();
    let count = items.iter().enumerate().filter(|(n, _)| fired(*n)).map(|(_, item)| item.runs.len()).sum();
    let mut runs = enqueued_again(runs.as_deref().map(str::as_bytes), count)?.into_iter();
    let answer = |(n, item): (usize, &FireItem)| {
        if fired(n) { Fired::Fired(runs.by_ref().take(item.runs.len()).collect()) } else { Fired::Stale }
    };
    Ok(items.iter().enumerate().map(answer).collect())
}

/// Of a reaped run.
type KeptReaped = (RunId, JobId, TenantId, Status);

pub fn reaped(reaped: &[Reaped]) -> Result<Kept, StoreError> {
    json(&reaped.iter().map(|one| (one.id, one.job, one.tenant, one.status)).collect::<Vec<KeptReaped>>())
}

pub fn reaped_again(kept: Option<&[u8]>) -> Result<Vec<Reaped>, StoreError> {
    let kept: Vec<KeptReaped> = json_again(kept)?;
    Ok(kept.into_iter().map(|(id, job, tenant, status)| Reaped { id, job, tenant, status }).collect())
}

/// Twenty bytes for each lease, in order.
pub fn leases(leases: impl Iterator<Item = Lease>) -> Vec<u8> {
    leases.flat_map(|lease| lease.run.0.into_bytes().into_iter().chain(lease.fence.0.to_be_bytes())).collect()
}

pub fn leases_again(kept: &[u8]) -> Result<Vec<Lease>, StoreError> {
    let lease = |bytes: &[u8]| {
        let (id, fence) = bytes.split_at_checked(16)?;
        let (run, fence) = (Uuid::from_slice(id).ok()?, i32::from_be_bytes(fence.try_into().ok()?));
        Some(Lease { run: RunId(run), fence: Fence(fence) })
    };
    kept.chunks(20).map(|bytes| lease(bytes).ok_or_else(|| corrupt("a kept claim", "it is cut off"))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kept_answers_read_back() {
        let made = |status, handed| Enqueued::Made { status, handed };
        let of = RunId(Uuid::from_u128(7));
        let mixed = vec![
            made(Status::Queued, true),
            Enqueued::Duplicate { of },
            made(Status::Queued, false),
            made(Status::Scheduled, false),
            Enqueued::Full,
            made(Status::Blocked, false),
            Enqueued::Duplicate { of: RunId(Uuid::from_u128(8)) },
            Enqueued::Again { of, status: Status::Queued, handed: true },
            Enqueued::Again { of, status: Status::Scheduled, handed: false },
        ];
        assert_eq!(enqueued_again(enqueued(&mixed).as_deref(), mixed.len()).unwrap(), mixed);
        assert_eq!(enqueued_again(json(&mixed).unwrap().as_deref(), mixed.len()).unwrap(), mixed);
        let plain = vec![made(Status::Queued, true); 3];
        assert_eq!(enqueued(&plain), None);
        assert_eq!(enqueued_again(None, 3).unwrap(), plain);
        let guards = [Guarded::Applied, Guarded::Stale, Guarded::CancelAsked];
        assert_eq!(guarded_again(guarded(&guards).as_deref(), 3).unwrap(), guards);
        assert_eq!(guarded_again(json(&guards).unwrap().as_deref(), 3).unwrap(), guards);
        assert_eq!(guarded_again(guarded(&guards[..1]).as_deref(), 1).unwrap(), guards[..1]);
    }

    #[test]
    fn kept_leases_read_back() {
        let given = [3, i32::MAX].map(|fence| Lease { run: RunId(Uuid::from_u128(5)), fence: Fence(fence) });
        let kept = leases(given.into_iter());
        assert_eq!(leases_again(&kept).unwrap(), given);
        assert!(leases_again(&kept[..39]).is_err());
    }
}
