//! Egress: which addresses a step may reach.
//!
//! A job's author chooses the address, a redirect or a name server chooses the
//! next one, and the request leaves from inside the operator's network. So by
//! default only public addresses are reached: not this machine, not the
//! neighbours, not a cloud's metadata. Addresses are judged as numbers, after
//! every spelling of them has been read, so there is no spelling to slip
//! through; an IPv4 address inside an IPv6 one is judged as itself.
//!
//! The operator opens what is wanted by host, by host and port, or by network.
//! A name on the list is trusted with whatever it resolves to; any other name
//! is refused if even one of its addresses is.
//!
//! This module does not resolve or connect: see the resolver of `http`, which
//! connects to the addresses that were judged and to no others.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    str::FromStr,
};

use url::{Host, Url};

/// What may be reached without being listed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reach {
    /// Public addresses.
    #[default]
    Public,
    /// Nothing.
    Listed,
    /// Everything. For a machine that holds nothing but the jobs of one person.
    Anything,
}

/// The operator's policy: a reach, and what is opened beyond it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Egress {
    pub reach: Reach,
    pub allow: Vec<Allowed>,
}

/// An entry of the allow-list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Allowed {
    /// A name or an address as it stands in a URL, with any port or one.
    Host { host: Host<String>, port: Option<u16> },
    /// A network such as `10.1.0.0/16`.
    Network { address: IpAddr, bits: u8 },
}

/// Why an address is not reached.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the egress policy does not allow {target}; the operator can add it to egress.allow")]
pub struct Denied {
    target: String,
}

impl Denied {
    fn new(target: impl fmt::Display) -> Self {
        Self { target: target.to_string() }
    }
}

/// How the host of a URL stands to the policy before it is resolved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clearance {
    /// Listed by name: its addresses need no look.
    Cleared,
    /// Each of its addresses must be looked at.
    ByAddress,
}

impl Egress {
    /// Everything is reached.
    pub const fn anything() -> Self {
        Self { reach: Reach::Anything, allow: Vec::new() }
    }

    /// Judges the host of a URL: an address at once, a name as far as a name goes.
    pub fn judge(&self, url: &Url) -> Result<Clearance, Denied> {
        let (Some(host), Some(port)) = (url.host(), url.port_or_known_default()) else {
            return Err(Denied::new("a URL without a host"));
        };
        let listed = self.reach == Reach::Anything || self.allow.iter().any(|entry| entry.names(&host, port));
        match host {
            _ if listed => Ok(Clearance::Cleared),
            Host::Domain(_) => Ok(Clearance::ByAddress),
            Host::Ipv4(address) => self.judge_address(address.into()).map(|()| Clearance::ByAddress),
            Host::Ipv6(address) => self.judge_address(address.into()).map(|()| Clearance::ByAddress),
        }
    }

    /// Judges every address of a name. One that is denied denies them all: a
    /// name that points both out and in is not to be trusted with either.
    pub fn judge_answers(&self, name: &str, addresses: &[IpAddr]) -> Result<(), Denied> {
        let denied = addresses.iter().find(|address| self.judge_address(**address).is_err());
        denied.map_or(Ok(()), |address| {
            // For the operator alone: whoever writes jobs must not learn by them how the
            // network inside is laid out.
            tracing::info!(name, %address, "the egress policy forbids an address that a name resolves to");
            Err(Denied::new(name))
        })
    }

    fn judge_address(&self, address: IpAddr) -> Result<(), Denied> {
        let open = match self.reach {
            Reach::Anything => true,
            Reach::Public => is_public(address),
            Reach::Listed => false,
        };
        let listed = || self.allow.iter().any(|entry| entry.holds(address));
        if open || listed() { Ok(()) } else { Err(Denied::new(address)) }
    }
}

impl Allowed {
    fn names<S: AsRef<str>>(&self, asked: &Host<S>, asked_port: u16) -> bool {
        let Self::Host { host, port } = self else { return false };
        let same = match (host, asked) {
            (Host::Domain(host), Host::Domain(asked)) => host == asked.as_ref().trim_end_matches('.'),
            (Host::Ipv4(host), Host::Ipv4(asked)) => host == asked,
            (Host::Ipv6(host), Host::Ipv6(asked)) => host == asked,
            (Host::Domain(_) | Host::Ipv4(_) | Host::Ipv6(_), _) => false,
        };
        same && port.is_none_or(|port| port == asked_port)
    }

    fn holds(&self, asked: IpAddr) -> bool {
        let Self::Network { address, bits } = self else { return false };
        match (address, asked, embedded(asked)) {
            (IpAddr::V4(net), IpAddr::V4(asked), _) | (IpAddr::V4(net), _, Some(asked)) => {
                within_v4(asked, *net, *bits)
            }
            (IpAddr::V6(net), IpAddr::V6(asked), _) => within_v6(asked, *net, *bits),
            (IpAddr::V4(_), IpAddr::V6(_), None) | (IpAddr::V6(_), IpAddr::V4(_), _) => false,
        }
    }
}

/// Why a text is no entry of the allow-list.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a host, a host and port, or a network such as 10.1.0.0/16")]
pub struct BadAllowed(String);

impl FromStr for Allowed {
    type Err = BadAllowed;

    fn from_str(text: &str) -> Result<Self, BadAllowed> {
        let bad = || BadAllowed(text.chars().take(128).collect());
        if let Some((address, bits)) = text.split_once('/') {
            let address: IpAddr = address.parse().map_err(|_| bad())?;
            let bits: u8 = bits.parse().map_err(|_| bad())?;
            let most = if address.is_ipv4() { 32 } else { 128 };
            return if bits <= most { Ok(Self::Network { address, bits }) } else { Err(bad()) };
        }
        // A bare IPv6 address has colons of its own.
        if let Ok(address) = text.parse::<Ipv6Addr>() {
            return Ok(Self::Host { host: Host::Ipv6(address), port: None });
        }
        let (host, port) = match text.rsplit_once(':') {
            Some((host, port)) if !port.ends_with(']') => (host, Some(port.parse().map_err(|_| bad())?)),
            _ => (text, None),
        };
        match Host::parse(host.trim_end_matches('.')).map_err(|_| bad())? {
            Host::Domain(name) if name.contains('*') => Err(bad()),
            host => Ok(Self::Host { host, port }),
        }
    }
}

/// Networks of IPv4 that are not the public internet (RFC 6890 and its
/// successors), and the public addresses under which a cloud speaks to its own
/// machines.
const CLOSED_V4: [(Ipv4Addr, u8); 16] = [
    // This network, and the unspecified address, which means this machine.
    (Ipv4Addr::UNSPECIFIED, 8),
    (Ipv4Addr::new(10, 0, 0, 0), 8),
    // Carrier-grade NAT, and Alibaba's metadata.
    (Ipv4Addr::new(100, 64, 0, 0), 10),
    (Ipv4Addr::new(127, 0, 0, 0), 8),
    // Link-local, and the metadata of most clouds.
    (Ipv4Addr::new(169, 254, 0, 0), 16),
    (Ipv4Addr::new(172, 16, 0, 0), 12),
    // Protocol assignments, and Oracle's metadata.
    (Ipv4Addr::new(192, 0, 0, 0), 24),
    (Ipv4Addr::new(192, 0, 2, 0), 24),
    (Ipv4Addr::new(192, 88, 99, 0), 24),
    (Ipv4Addr::new(192, 168, 0, 0), 16),
    (Ipv4Addr::new(198, 18, 0, 0), 15),
    (Ipv4Addr::new(198, 51, 100, 0), 24),
    (Ipv4Addr::new(203, 0, 113, 0), 24),
    // Azure's host, which answers its machines on a public address.
    (Ipv4Addr::new(168, 63, 129, 16), 32),
    // Multicast.
    (Ipv4Addr::new(224, 0, 0, 0), 4),
    // Reserved, and broadcast.
    (Ipv4Addr::new(240, 0, 0, 0), 4),
];

/// Networks inside `2000::/3` that are not the public internet. Outside of it
/// nothing is: loopback, unique local, link-local, multicast.
const CLOSED_V6: [(Ipv6Addr, u8); 3] = [
    // Protocol assignments, Teredo among them.
    (Ipv6Addr::new(0x2001, 0, 0, 0, 0, 0, 0, 0), 23),
    (Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 0), 32),
    (Ipv6Addr::new(0x3fff, 0, 0, 0, 0, 0, 0, 0), 20),
];

const GLOBAL_V6: (Ipv6Addr, u8) = (Ipv6Addr::new(0x2000, 0, 0, 0, 0, 0, 0, 0), 3);

fn is_public(address: IpAddr) -> bool {
    match (address, embedded(address)) {
        (IpAddr::V4(address), _) | (IpAddr::V6(_), Some(address)) => {
            !CLOSED_V4.iter().any(|(net, bits)| within_v4(address, *net, *bits))
        }
        (IpAddr::V6(address), None) => {
            within_v6(address, GLOBAL_V6.0, GLOBAL_V6.1)
                && !is_isatap(address)
                && !CLOSED_V6.iter().any(|(net, bits)| within_v6(address, *net, *bits))
        }
    }
}

/// The IPv4 address that an IPv6 one leads to: mapped, through NAT64, or 6to4.
fn embedded(address: IpAddr) -> Option<Ipv4Addr> {
    let IpAddr::V6(address) = address else { return None };
    let from = |high: u16, low: u16| Some(Ipv4Addr::from(u32::from(high) << 16 | u32::from(low)));
    match address.segments() {
        [0, 0, 0, 0, 0, 0xffff, high, low]
        | [0x64, 0xff9b, 0, 0, 0, 0, high, low]
        | [0x2002, high, low, _, _, _, _, _] => from(high, low),
        _ => None,
    }
}

/// Whether an address is one of ISATAP, whose last 32 bits are an IPv4 address inside of a
/// site, whatever network the others name. None is a public machine.
fn is_isatap(address: Ipv6Addr) -> bool {
    matches!(address.segments(), [_, _, _, _, 0 | 0x200, 0x5efe, _, _])
}

fn within_v4(address: Ipv4Addr, net: Ipv4Addr, bits: u8) -> bool {
    let mask = u32::MAX.checked_shl(32 - u32::from(bits)).unwrap_or(0);
    u32::from(address) & mask == u32::from(net) & mask
}

fn within_v6(address: Ipv6Addr, net: Ipv6Addr, bits: u8) -> bool {
    let mask = u128::MAX.checked_shl(128 - u32::from(bits)).unwrap_or(0);
    u128::from(address) & mask == u128::from(net) & mask
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(egress: &Egress, url: &str) -> Result<Clearance, Denied> {
        egress.judge(&Url::parse(url).unwrap_or_else(|error| panic!("{url}: {error}")))
    }

    fn opening(entries: &[&str]) -> Egress {
        Egress { reach: Reach::Public, allow: entries.iter().map(|entry| entry.parse().unwrap()).collect() }
    }

    /// Each is the same few machines, spelled so that a comparison of texts
    /// would miss it.
    #[test]
    fn no_spelling_of_an_inner_address_is_reached() {
        for host in [
            "127.0.0.1",
            "127.1",
            "127.0.1",
            "2130706433",
            "0x7f000001",
            "0x7f.1",
            "0177.0.0.1",
            "017700000001",
            "0x7f.0.0.0x1",
            "127.0.0.1.",
            "１２７.０.０.１",
            "127。0。0。1",
            "127.255.255.254",
            "%31%32%37.0.0.1",
            "0",
            "0.0.0.0",
            "0.1.2.3",
            "[::]",
            "[::1]",
            "[0:0:0:0:0:0:0:1]",
            "[::ffff:127.0.0.1]",
            "[::ffff:7f00:1]",
            "[0:0:0:0:0:ffff:7f00:0001]",
            "[::127.0.0.1]",
            "[::8.8.8.8]",
            "[::ffff:0:127.0.0.1]",
            "[::ffff:0:8.8.8.8]",
            "[2606:4700::5efe:127.0.0.1]",
            "[2606:4700::200:5efe:10.0.0.1]",
            "[2a00:1450:1:2:0:5efe:8.8.8.8]",
            "[fe80::5efe:10.0.0.1]",
            "[64:ff9b::127.0.0.1]",
            "[64:ff9b::a9fe:a9fe]",
            "[64:ff9b:1::7f00:1]",
            "[2002:7f00:1::]",
            "[2002:a00:1::1]",
            "[2001:0:4136:e378:8000:63bf:3fff:fdd2]",
            "[2001:db8::1]",
            "[3fff::1]",
            "10.0.0.1",
            "10.255.255.255",
            "012.0.0.1",
            "167772161",
            "172.16.0.1",
            "172.31.255.255",
            "192.168.0.1",
            "0xc0a80001",
            "3232235521",
            "100.64.0.1",
            "100.127.255.255",
            "100.100.100.200",
            "169.254.169.254",
            "2852039166",
            "0xa9fea9fe",
            "0251.0376.0251.0376",
            "[::ffff:169.254.169.254]",
            "[::ffff:a9fe:a9fe]",
            "[fe80::1]",
            "[febf::1]",
            "[fd00:ec2::254]",
            "[fc00::1]",
            "[fec0::1]",
            "192.0.0.192",
            "168.63.129.16",
            "192.0.2.1",
            "192.88.99.1",
            "198.18.0.1",
            "198.19.255.255",
            "198.51.100.1",
            "203.0.113.1",
            "224.0.0.1",
            "239.255.255.255",
            "240.0.0.1",
            "255.255.255.255",
            "[ff02::1]",
            "[ff0e::1]",
            "[100::1]",
            "[5f00::1]",
            "[4000::1]",
        ] {
            let url = format!("http://{host}/");
            assert!(judged(&Egress::default(), &url).is_err(), "{host} is reached");
        }
    }

    #[test]
    fn public_addresses_are_reached_by_their_address() {
        for host in [
            "8.8.8.8",
            "1.1.1.1",
            "9.255.255.255",
            "11.0.0.0",
            "100.63.255.255",
            "100.128.0.0",
            "172.15.255.255",
            "172.32.0.0",
            "169.253.255.255",
            "192.167.255.255",
            "168.63.129.17",
            "223.255.255.255",
            "134744072",
            "[2606:4700::1111]",
            "[2a00:1450::1]",
            "[::ffff:8.8.8.8]",
            "[64:ff9b::8.8.8.8]",
            "[2002:808:808::1]",
            "example.com",
        ] {
            let url = format!("https://{host}/");
            assert_eq!(judged(&Egress::default(), &url), Ok(Clearance::ByAddress), "{host}");
        }
    }

    /// A name server that answers with both makes the outcome a matter of luck.
    #[test]
    fn one_inner_address_among_the_answers_denies_the_name() {
        let egress = Egress::default();
        let [out, inner]: [IpAddr; 2] = ["8.8.8.8".parse().unwrap(), "10.0.0.1".parse().unwrap()];
        assert_eq!(egress.judge_answers("a.example", &[out]), Ok(()));
        let denied = egress.judge_answers("a.example", &[out, inner]).unwrap_err();
        assert_eq!(
            denied.to_string(),
            "the egress policy does not allow a.example; the operator can add it to egress.allow",
            "it must not tell what a name resolves to"
        );
        assert!(opening(&["10.0.0.0/24"]).judge_answers("a.example", &[out, inner]).is_ok());
    }

    #[test]
    fn list_opens_hosts_ports_and_networks_and_nothing_beside_them() {
        for (entry, url, reached) in [
            ("127.0.0.1", "http://127.0.0.1:9/", true),
            ("127.0.0.1", "http://0x7f.1/", true),
            ("127.0.0.1", "http://127.0.0.2/", false),
            ("127.0.0.1:8080", "http://127.0.0.1:8080/", true),
            ("127.0.0.1:8080", "http://127.0.0.1/", false),
            ("127.0.0.1:80", "http://127.0.0.1/", true),
            ("127.0.0.1:443", "https://127.0.0.1/", true),
            ("::1", "http://[::1]:5/", true),
            ("[::1]:5", "http://[::1]:5/", true),
            ("[::1]:5", "http://[::1]:6/", false),
            ("10.1.0.0/16", "http://10.1.2.3/", true),
            ("10.1.0.0/16", "http://[::ffff:10.1.2.3]/", true),
            ("10.1.0.0/16", "http://10.2.0.0/", false),
            ("fd00::/8", "http://[fd12::1]/", true),
            ("fd00::/8", "http://[fe80::1]/", false),
            ("0.0.0.0/0", "http://127.0.0.1/", true),
            ("0.0.0.0/0", "http://[::1]/", false),
        ] {
            assert_eq!(judged(&opening(&[entry]), url).is_ok(), reached, "{entry} and {url}");
        }
        for (entry, url, clearance) in [
            ("Inner.Example", "http://inner.example:8/", Clearance::Cleared),
            ("inner.example", "http://inner.example./", Clearance::Cleared),
            ("inner.example:8", "http://inner.example:9/", Clearance::ByAddress),
            ("inner.example", "http://inner.example.evil/", Clearance::ByAddress),
            ("inner.example", "http://sub.inner.example/", Clearance::ByAddress),
            ("inner.example", "http://evil/?inner.example", Clearance::ByAddress),
            ("inner.example", "http://inner.example@evil/", Clearance::ByAddress),
        ] {
            assert_eq!(judged(&opening(&[entry]), url), Ok(clearance), "{entry} and {url}");
        }
    }

    #[test]
    fn a_closed_installation_reaches_what_is_listed_only() {
        let egress = Egress { reach: Reach::Listed, ..opening(&["api.example", "8.8.8.0/24"]) };
        assert_eq!(judged(&egress, "http://api.example/"), Ok(Clearance::Cleared));
        assert!(judged(&egress, "http://8.8.8.8/").is_ok());
        assert!(judged(&egress, "http://1.1.1.1/").is_err());
        assert!(egress.judge_answers("other.example", &["1.1.1.1".parse().unwrap()]).is_err());
        assert_eq!(judged(&Egress::anything(), "http://127.0.0.1/"), Ok(Clearance::Cleared));
    }

    #[test]
    fn entries_that_mean_nothing_are_refused() {
        for text in ["", "10.0.0.0/33", "10.0.0.0/x", "::/129", "host:port", "a b", "*.example", "host:70000", "host/8"]
        {
            assert!(text.parse::<Allowed>().is_err(), "{text}");
        }
    }
}
