//! Roll-ups as bytes, the same in both stores.
//!
//! A settled batch of a thousand runs may touch a thousand jobs, so a delta is
//! packed: numbers in as few bytes as they need, counts that are zero left out.
//! About twenty bytes for a job with one run.

use std::collections::BTreeMap;

use rota_core::{ids::JobId, rollup::Rollup, run::Verdict, store::StoreError};

use crate::codec::corrupt;

/// The first byte of everything packed here, for later formats to differ in.
const FORMAT: u8 = 1;

pub type Rollups = BTreeMap<(JobId, i64), Rollup>;

pub fn encode(rollups: &Rollups) -> Vec<u8> {
    let mut bytes = vec![FORMAT];
    let (mut last_job, mut last_hour) = (0, 0);
    for ((job, hour), rollup) in rollups {
        put_signed(&mut bytes, job.0.wrapping_sub(last_job));
        put_signed(&mut bytes, hour.wrapping_sub(last_hour));
        (last_job, last_hour) = (job.0, *hour);
        put_rollup(&mut bytes, rollup);
    }
    bytes
}

pub fn decode(bytes: &[u8]) -> Result<Rollups, StoreError> {
    let mut reader = Reader(bytes);
    reader.format()?;
    let mut rollups = Rollups::new();
    let (mut job, mut hour) = (0_i64, 0_i64);
    while !reader.0.is_empty() {
        job = job.wrapping_add(reader.signed()?);
        hour = hour.wrapping_add(reader.signed()?);
        rollups.insert((JobId(job), hour), reader.rollup()?);
    }
    Ok(rollups)
}

pub fn encode_one(rollup: &Rollup) -> Vec<u8> {
    let mut bytes = vec![FORMAT];
    put_rollup(&mut bytes, rollup);
    bytes
}

pub fn decode_one(bytes: &[u8]) -> Result<Rollup, StoreError> {
    let mut reader = Reader(bytes);
    reader.format()?;
    reader.rollup()
}

fn put_rollup(bytes: &mut Vec<u8>, rollup: &Rollup) {
    put_counts(bytes, &rollup.ended);
    put(bytes, rollup.attempts);
    put(bytes, rollup.losses);
    put(bytes, rollup.duration_ms);
    put(bytes, rollup.duration_max_ms);
    put_counts(bytes, &rollup.durations);
    put(bytes, rollup.delay_ms);
    put(bytes, rollup.delay_max_ms);
    put_counts(bytes, &rollup.delays);
}

/// The length, and then each count that is not zero behind its place.
fn put_counts(bytes: &mut Vec<u8>, counts: &[u64]) {
    let used = counts.iter().filter(|count| **count > 0).count();
    put(bytes, counts.len() as u64);
    put(bytes, used as u64);
    for (place, count) in counts.iter().enumerate().filter(|(_, count)| **count > 0) {
        put(bytes, place as u64);
        put(bytes, *count);
    }
}

fn put(bytes: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}

fn put_signed(bytes: &mut Vec<u8>, number: i64) {
    put(bytes, ((number << 1) ^ (number >> 63)) as u64);
}

struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn byte(&mut self) -> Result<u8, StoreError> {
        let (first, rest) = self.0.split_first().ok_or_else(|| corrupt("a roll-up", "it is cut off"))?;
        self.0 = rest;
        Ok(*first)
    }

    fn format(&mut self) -> Result<(), StoreError> {
        match self.byte()? {
            FORMAT => Ok(()),
            other => Err(corrupt("a roll-up's format", other)),
        }
    }

    fn number(&mut self) -> Result<u64, StoreError> {
        let (mut number, mut shift) = (0_u64, 0);
        loop {
            let byte = self.byte()?;
            if shift > 63 {
                return Err(corrupt("a roll-up", "a number is too long"));
            }
            number |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(number);
            }
            shift += 7;
        }
    }

    fn signed(&mut self) -> Result<i64, StoreError> {
        let number = self.number()?;
        Ok((number >> 1) as i64 ^ -((number & 1) as i64))
    }

    fn counts(&mut self) -> Result<Vec<u64>, StoreError> {
        let len = self.number()? as usize;
        if len > 1_024 {
            return Err(corrupt("a roll-up", "it has too many buckets"));
        }
        let mut counts = vec![0; len];
        for _ in 0..self.number()? {
            let place = self.number()? as usize;
            let count = self.number()?;
            *counts.get_mut(place).ok_or_else(|| corrupt("a roll-up's bucket", place))? = count;
        }
        Ok(counts)
    }

    fn rollup(&mut self) -> Result<Rollup, StoreError> {
        let ended = self.counts()?;
        let mut rollup = Rollup { ended: [0; Verdict::ALL.len()], ..Rollup::default() };
        for (place, count) in rollup.ended.iter_mut().zip(ended) {
            *place = count;
        }
        rollup.attempts = self.number()?;
        rollup.losses = self.number()?;
        rollup.duration_ms = self.number()?;
        rollup.duration_max_ms = self.number()?;
        rollup.durations = self.counts()?;
        rollup.delay_ms = self.number()?;
        rollup.delay_max_ms = self.number()?;
        rollup.delays = self.counts()?;
        Ok(rollup)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rollup(n: u64) -> Rollup {
        Rollup {
            ended: [n, 0, 0, 1, 0, 0, n * 1_000],
            attempts: n,
            losses: 2,
            duration_ms: u64::from(u32::MAX) * n,
            duration_max_ms: 300,
            durations: vec![0, n, 0, 7],
            delay_ms: 0,
            delay_max_ms: u64::MAX,
            delays: Vec::new(),
        }
    }

    #[test]
    fn roll_ups_read_back_as_written() {
        let rollups: Rollups =
            [(-5, 3), (1, 489_000), (7, -1)].into_iter().map(|(job, hour)| ((JobId(job), hour), rollup(9))).collect();
        assert_eq!(decode(&encode(&rollups)).unwrap(), rollups);
        assert_eq!(decode_one(&encode_one(&rollup(0))).unwrap(), rollup(0));
    }

    #[test]
    fn what_is_cut_off_is_told() {
        let bytes = encode_one(&rollup(3));
        for len in 0..bytes.len() {
            assert!(decode_one(&bytes[..len]).is_err(), "{len}");
        }
    }
}
