//! The lender: room granted, and pages stored in it.

use std::collections::BTreeMap;

use hiroba_base::{NodeId, PageId};

use super::Outbox;
use super::message::{Message, Page};

/// What one borrower has here.
#[derive(Debug, Default)]
struct Account {
    /// Room granted, in pages.
    granted: u64,
    /// Its pages, with their stamps.
    pages: BTreeMap<PageId, (u64, Vec<u8>)>,
    /// The length of all of them.
    bytes: u64,
}

impl Account {
    fn unused(&self) -> u64 {
        self.granted.saturating_sub(self.pages.len() as u64)
    }

    fn insert(&mut self, page: Page) {
        self.bytes += page.bytes.len() as u64;
        if let Some((_, before)) = self.pages.insert(page.granule, (page.stamp, page.bytes)) {
            self.bytes -= before.len() as u64;
        }
    }

    fn remove(&mut self, granule: PageId) {
        if let Some((_, before)) = self.pages.remove(&granule) {
            self.bytes -= before.len() as u64;
        }
    }

    fn pop_last(&mut self) -> Option<Page> {
        let (granule, (stamp, bytes)) = self.pages.pop_last()?;
        self.bytes -= bytes.len() as u64;
        Some(Page { granule, stamp, bytes })
    }
}

#[derive(Debug)]
pub(super) struct Lender {
    /// The memory that may be promised in all.
    room_bytes: u64,
    /// The length of a page that is not compressed. Room that is unused may be needed for such pages.
    page_bytes: u64,
    /// By node.
    accounts: Vec<Account>,
    pub(super) lent: u64,
    pub(super) taken_back: u64,
}

impl Lender {
    pub(super) fn new(nodes: u16, page_bytes: u64) -> Lender {
        let accounts = (0..nodes).map(|_| Account::default()).collect();
        Lender { room_bytes: 0, page_bytes, accounts, lent: 0, taken_back: 0 }
    }

    /// Returns the memory that this node has promised: that of pages, and that of unused room.
    pub(super) fn promised_bytes(&self) -> u64 {
        self.bytes() + self.accounts.iter().map(Account::unused).sum::<u64>() * self.page_bytes
    }

    pub(super) fn pages(&self) -> u64 {
        self.accounts.iter().map(|account| account.pages.len() as u64).sum()
    }

    pub(super) fn bytes(&self) -> u64 {
        self.accounts.iter().map(|account| account.bytes).sum()
    }

    pub(super) fn account_with(&self, node: NodeId) -> (i64, u64) {
        let account = &self.accounts[node.index()];
        (account.granted as i64, account.pages.len() as u64)
    }

    pub(super) fn set_room(&mut self, bytes: u64, outbox: &mut Outbox) {
        self.room_bytes = bytes;
        self.keep_to_room(outbox);
    }

    /// Takes room and pages back until no more is promised than there is.
    fn keep_to_room(&mut self, outbox: &mut Outbox) {
        let Lender { room_bytes, page_bytes, accounts, taken_back, .. } = self;
        let mut promised: u64 =
            accounts.iter().map(|account| account.bytes + account.unused() * *page_bytes).sum();
        // Unused room first: nothing has to move.
        for (node, account) in accounts.iter_mut().enumerate() {
            let excess = promised.saturating_sub(*room_bytes).div_ceil(*page_bytes);
            let revoked = account.unused().min(excess).min(u64::from(u32::MAX));
            if revoked > 0 {
                account.granted -= revoked;
                promised -= revoked * *page_bytes;
                outbox.push_back((NodeId(node as u16), Message::Revoke { count: revoked as u32 }));
            }
        }
        while promised > *room_bytes {
            let most = accounts.iter_mut().enumerate().max_by_key(|(_, account)| account.bytes);
            let Some((node, account)) = most else { return };
            let Some(page) = account.pop_last() else { return };
            account.granted -= 1;
            promised -= page.bytes.len() as u64;
            *taken_back += 1;
            let to = NodeId(node as u16);
            outbox.push_back((to, Message::Revoke { count: 1 }));
            outbox.push_back((to, Message::Return(page)));
        }
    }

    pub(super) fn handle_ask(&mut self, from: NodeId, count: u32, outbox: &mut Outbox) {
        let left = self.room_bytes.saturating_sub(self.promised_bytes()) / self.page_bytes;
        let granted = u64::from(count).min(left);
        self.accounts[from.index()].granted += granted;
        let (count, left) = (granted as u32, left - granted);
        outbox.push_back((from, Message::Grant { count, left, is_answer: true }));
    }

    pub(super) fn handle_give_back(&mut self, from: NodeId, count: u32, outbox: &mut Outbox) {
        let account = &mut self.accounts[from.index()];
        let taken = u64::from(count).min(account.unused()) as u32;
        account.granted -= u64::from(taken);
        if taken < count {
            // The rest was revoked while the message travelled: the borrower has given it twice.
            let count = count - taken;
            outbox.push_back((from, Message::Grant { count, left: 0, is_answer: false }));
        }
    }

    pub(super) fn handle_store(&mut self, from: NodeId, page: Page, outbox: &mut Outbox) {
        let account = &mut self.accounts[from.index()];
        let has_room = account.unused() > 0 || account.pages.contains_key(&page.granule);
        if !has_room {
            self.taken_back += 1;
            outbox.push_back((from, Message::Return(page)));
            return;
        }
        account.insert(page);
        self.lent += 1;
        // It may be longer than the version in whose place it is.
        self.keep_to_room(outbox);
    }

    pub(super) fn handle_fetch(
        &mut self,
        from: NodeId,
        ticket: u64,
        granule: PageId,
        stamp: u64,
        outbox: &mut Outbox,
    ) {
        let answer = match self.accounts[from.index()].pages.get(&granule) {
            Some((stored, bytes)) if *stored == stamp => {
                Message::Page { ticket, page: Page { granule, stamp, bytes: bytes.clone() } }
            }
            _ => Message::Missing { ticket },
        };
        outbox.push_back((from, answer));
    }

    pub(super) fn handle_drop(&mut self, from: NodeId, granule: PageId, stamp: u64, outbox: &mut Outbox) {
        let account = &mut self.accounts[from.index()];
        if account.pages.get(&granule).is_some_and(|(stored, _)| *stored == stamp) {
            account.remove(granule);
            // The room that it leaves may be needed for a longer page.
            self.keep_to_room(outbox);
        }
    }

    pub(super) fn handle_death(&mut self, node: NodeId) {
        self.accounts[node.index()] = Account::default();
    }
}
