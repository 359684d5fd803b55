// SPDX-License-Identifier: Apache-2.0
//! Open connections. One without a valid token may be closed in favour of a new one; otherwise idle connections could
//! lock out every client.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio_util::sync::CancellationToken;

/// All connections, oldest first.
#[derive(Default)]
pub(super) struct Guests {
    list: Mutex<VecDeque<Guest>>,
}

struct Guest {
    address: IpAddr,
    /// The client has sent the token.
    known: bool,
    leave: CancellationToken,
    place: Arc<()>,
}

/// A connection's slot, freed on drop.
pub(super) struct Place {
    guests: Arc<Guests>,
    place: Arc<()>,
    leave: CancellationToken,
}

impl Guests {
    /// A slot for a connection from this address; `None` if `most` connections, or `of_one` from this address, have
    /// sent the token.
    pub(super) fn admit(self: &Arc<Self>, address: IpAddr, most: usize, of_one: usize) -> Option<Place> {
        let mut list = self.lock();
        let crowd = list.iter().filter(|guest| guest.address == address).count() >= of_one;
        if crowd || list.len() >= most {
            let may_leave = |guest: &Guest| !guest.known && (!crowd || guest.address == address);
            let first = list.iter().position(may_leave)?;
            list.remove(first).into_iter().for_each(|guest| guest.leave.cancel());
        }
        let (leave, place) = (CancellationToken::new(), Arc::new(()));
        list.push_back(Guest { address, known: false, leave: leave.clone(), place: Arc::clone(&place) });
        Some(Place { guests: Arc::clone(self), place, leave })
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Guest>> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Place {
    /// Notes that the client has sent the token.
    pub(super) fn is_known(&self) {
        let mut list = self.guests.lock();
        list.iter_mut().filter(|guest| Arc::ptr_eq(&guest.place, &self.place)).for_each(|guest| guest.known = true);
    }

    /// Waits until the connection must close.
    pub(super) async fn must_leave(&self) {
        self.leave.cancelled().await;
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.guests.lock().retain(|guest| !Arc::ptr_eq(&guest.place, &self.place));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_not_shown_the_token_leaves_for_who_comes_and_who_has_stays() {
        let guests = Arc::new(Guests::default());
        let [a, b] = [IpAddr::from([10, 0, 0, 1]), IpAddr::from([10, 0, 0, 2])];
        let admit = |address| guests.admit(address, 4, 3);
        let (one, two, three) = (admit(a).unwrap(), admit(a).unwrap(), admit(a).unwrap());
        one.is_known();
        let four = admit(b).unwrap();
        // Address `a` has reached its limit: its oldest connection without the token closes.
        let five = admit(a).unwrap();
        let left = [&one, &two, &three, &four, &five].map(|place| place.leave.is_cancelled());
        assert_eq!(left, [false, true, false, false, false]);
        // The total limit is reached: the oldest connection without the token closes.
        let six = admit(b).unwrap();
        assert!(three.leave.is_cancelled() && !four.leave.is_cancelled());
        [&four, &five, &six].into_iter().for_each(Place::is_known);
        assert!(admit(b).is_none(), "all have shown the token");
        drop(one);
        assert!(admit(b).is_some());
    }
}
