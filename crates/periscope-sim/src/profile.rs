//! The kinds of accelerator that the simulator stands for.
//!
//! A profile decides where device memory lies, what an address of it looks like, and how a request to map is answered.
//! Everything else (copies, execution, contract checks) is the same for all.

use std::fmt;

use periscope_hal::{AddressSpace, DeviceUri};

/// Allocations below this are not mapped by [`Profile::A2a3Pages64k`].
pub const HUGE_PAGE_BYTES: u64 = 2 << 20;

/// A kind of simulated accelerator.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Profile {
    /// `sim`: device memory is host memory at the same address.
    Identity,
    /// `sim:a2a3`: device memory can be mapped, at an address of its own.
    A2a3,
    /// `sim:a2a3-64k`: the same on a host of 64 KiB pages, where only what fills a huge page can be mapped.
    A2a3Pages64k,
    /// `sim:a5`: nothing but copies reaches device memory.
    A5,
    /// `sim:windowed`: mapped, but the mapping is usable only while no kernel uses the memory.
    Windowed,
}

/// What a profile says to a request to map.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum MapPolicy {
    Identity,
    Mapped,
    Windowed,
    Refused(String),
}

impl Profile {
    /// Every profile, the default first.
    pub const ALL: [Profile; 5] =
        [Profile::Identity, Profile::A2a3, Profile::A2a3Pages64k, Profile::A5, Profile::Windowed];

    /// The profile that this URI names, if it is one of the simulator's.
    #[must_use]
    pub fn of_uri(uri: &DeviceUri) -> Option<Profile> {
        Profile::ALL.into_iter().find(|profile| uri.scheme() == "sim" && profile.name() == uri.device())
    }

    /// The URI's part after `sim:`; empty for the default.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Profile::Identity => "",
            Profile::A2a3 => "a2a3",
            Profile::A2a3Pages64k => "a2a3-64k",
            Profile::A5 => "a5",
            Profile::Windowed => "windowed",
        }
    }

    /// The URI of its devices.
    ///
    /// # Panics
    /// Never: every name is a word.
    #[must_use]
    pub fn uri(self) -> DeviceUri {
        self.to_string().parse().expect("profile names are words")
    }

    /// A line for people.
    #[must_use]
    pub fn description(self) -> &'static str {
        match self {
            Profile::Identity => "simulated accelerator in host memory (identity host view)",
            Profile::A2a3 => "simulated accelerator with SVM mapping (mapped host view)",
            Profile::A2a3Pages64k => {
                "simulated accelerator on a 64 KiB-page host (mapped from 2 MiB on, else mirrored)"
            }
            Profile::A5 => "simulated accelerator without a map path (mirrored host view)",
            Profile::Windowed => "simulated accelerator with coarse-grained shared memory (windowed host view)",
        }
    }

    /// What its device addresses mean to the host.
    #[must_use]
    pub fn address_space(self) -> AddressSpace {
        if self == Profile::Identity { AddressSpace::Host } else { AddressSpace::Opaque }
    }

    /// Whether its memory must be mappable a second time.
    pub(crate) fn maps_elsewhere(self) -> bool {
        matches!(self, Profile::A2a3 | Profile::A2a3Pages64k | Profile::Windowed)
    }

    /// The answer to a request to map an allocation of `len_bytes`.
    pub(crate) fn map_policy(self, len_bytes: u64) -> MapPolicy {
        match self {
            Profile::Identity => MapPolicy::Identity,
            Profile::A2a3Pages64k if len_bytes < HUGE_PAGE_BYTES => MapPolicy::Refused(format!(
                "map refused: allocation of {} B is under the 2 MiB huge page of a 64 KiB-page host",
                grouped(len_bytes)
            )),
            Profile::A2a3 | Profile::A2a3Pages64k => MapPolicy::Mapped,
            Profile::A5 => MapPolicy::Refused("no map path".into()),
            Profile::Windowed => MapPolicy::Windowed,
        }
    }
}

impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.name().is_empty() { "sim" } else { "sim:" })?;
        f.write_str(self.name())
    }
}

/// A number with a comma before every third digit from the right.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() * 4 / 3);
    for (position, digit) in digits.chars().enumerate() {
        if position > 0 && (digits.len() - position).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uris_name_profiles_and_back() {
        for profile in Profile::ALL {
            assert_eq!(Profile::of_uri(&profile.uri()), Some(profile));
        }
        assert_eq!(Profile::A2a3Pages64k.to_string(), "sim:a2a3-64k");
        assert_eq!(Profile::of_uri(&"sim:a7".parse().unwrap()), None);
        assert_eq!(Profile::of_uri(&"opencl:a5".parse().unwrap()), None);
    }

    #[test]
    fn the_refusal_says_how_large_the_allocation_is() {
        let MapPolicy::Refused(reason) = Profile::A2a3Pages64k.map_policy(1024) else { panic!("granted") };
        assert_eq!(reason, "map refused: allocation of 1,024 B is under the 2 MiB huge page of a 64 KiB-page host");
        assert_eq!(Profile::A2a3Pages64k.map_policy(HUGE_PAGE_BYTES), MapPolicy::Mapped);
        assert_eq!(["7", "512", "1,024", "1,048,576"], [7, 512, 1024, 1 << 20].map(grouped).each_ref().map(|s| &**s));
    }
}
