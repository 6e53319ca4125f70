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
}

impl Account {
    fn unused(&self) -> u64 {
        self.granted.saturating_sub(self.pages.len() as u64)
    }
}

#[derive(Debug)]
pub(super) struct Lender {
    /// The room that may be granted in all.
    room: u64,
    /// By node.
    accounts: Vec<Account>,
    pub(super) lent: u64,
    pub(super) taken_back: u64,
}

impl Lender {
    pub(super) fn new(nodes: u16) -> Lender {
        let accounts = (0..nodes).map(|_| Account::default()).collect();
        Lender { room: 0, accounts, lent: 0, taken_back: 0 }
    }

    pub(super) fn granted(&self) -> u64 {
        self.accounts.iter().map(|account| account.granted).sum()
    }

    pub(super) fn pages(&self) -> u64 {
        self.accounts.iter().map(|account| account.pages.len() as u64).sum()
    }

    pub(super) fn account_with(&self, node: NodeId) -> (i64, u64) {
        let account = &self.accounts[node.index()];
        (account.granted as i64, account.pages.len() as u64)
    }

    pub(super) fn set_room(&mut self, pages: u64, outbox: &mut Outbox) {
        self.room = pages;
        let mut excess = self.granted().saturating_sub(pages);
        // Unused room first: nothing has to move.
        for (node, account) in self.accounts.iter_mut().enumerate() {
            let revoked = account.unused().min(excess).min(u64::from(u32::MAX));
            if revoked > 0 {
                account.granted -= revoked;
                excess -= revoked;
                outbox.push_back((NodeId(node as u16), Message::Revoke { count: revoked as u32 }));
            }
        }
        while excess > 0 {
            let most = self.accounts.iter().enumerate().max_by_key(|(_, account)| account.pages.len());
            let Some(node) = most.map(|(node, _)| node) else { return };
            let account = &mut self.accounts[node];
            let Some((granule, (stamp, bytes))) = account.pages.pop_last() else { return };
            account.granted -= 1;
            excess -= 1;
            self.taken_back += 1;
            let to = NodeId(node as u16);
            outbox.push_back((to, Message::Revoke { count: 1 }));
            outbox.push_back((to, Message::Return(Page { granule, stamp, bytes })));
        }
    }

    pub(super) fn handle_ask(&mut self, from: NodeId, count: u32, outbox: &mut Outbox) {
        let left = self.room.saturating_sub(self.granted());
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
        account.pages.insert(page.granule, (page.stamp, page.bytes));
        self.lent += 1;
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

    pub(super) fn handle_drop(&mut self, from: NodeId, granule: PageId, stamp: u64) {
        let pages = &mut self.accounts[from.index()].pages;
        if pages.get(&granule).is_some_and(|(stored, _)| *stored == stamp) {
            pages.remove(&granule);
        }
    }

    pub(super) fn handle_death(&mut self, node: NodeId) {
        self.accounts[node.index()] = Account::default();
    }
}
