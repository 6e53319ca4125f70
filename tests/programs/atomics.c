/*
 * Proves: atomics lose no update and order each other. fetch_add counts exactly and gives each ticket once.
 * Loops of compare_exchange lose no update, and a failed one reports the value that it found. A load that
 * sees a store also sees the stores before it. Plain data and atomics on the same page do not undo each
 * other.
 */
#include <stdint.h>

#include "check.h"

enum { ADDS = 500, MESSAGES = 200, ROUNDS = 100 };

int main(int argc, char **argv)
{
    join(&argc, &argv);
    uint64_t node = (uint64_t)hiroba_node(), nodes = (uint64_t)hiroba_nodes();
    uint64_t *word = shared(512 * sizeof *word); /* all on one page */
    uint64_t *counter = &word[0], *product = &word[1], *data = &word[2], *flag = &word[3];
    uint64_t *mixed = &word[4];
    uint64_t *plain = &word[8]; /* one for each node, next to the atomics */
    unsigned char *tickets = shared((size_t)nodes * ADDS);

    for (int i = 0; i < ADDS; i++) {
        uint64_t ticket = hiroba_fetch_add(counter, 1);
        CHECK(ticket < nodes * ADDS, "ticket %lu of %lu", (unsigned long)ticket,
              (unsigned long)(nodes * ADDS));
        tickets[ticket]++;
    }
    hiroba_barrier();
    CHECK(hiroba_load(counter) == nodes * ADDS, "the atomic counter is %lu",
          (unsigned long)hiroba_load(counter));
    CHECK(*counter == nodes * ADDS, "a plain load after the barrier gives %lu",
          (unsigned long)*counter);
    for (uint64_t i = 0; i < nodes * ADDS; i++)
        CHECK(tickets[i] == 1, "ticket %lu was given %d times", (unsigned long)i, tickets[i]);

    /* x -> 3x + 1 cannot be done by an addition: it takes a loop, and shows any lost update. */
    for (int i = 0; i < ROUNDS; i++) {
        uint64_t expected = hiroba_load(product);
        while (!hiroba_compare_exchange(product, &expected, expected * 3 + 1))
            ;
    }
    uint64_t wanted = 0;
    for (uint64_t i = 0; i < nodes * ROUNDS; i++)
        wanted = wanted * 3 + 1;
    hiroba_barrier();
    CHECK(hiroba_load(product) == wanted, "compare_exchange lost an update");
    uint64_t other = wanted + 1;
    CHECK(!hiroba_compare_exchange(product, &other, 0) && other == wanted,
          "a failed compare_exchange reports %lu, not %lu", (unsigned long)other,
          (unsigned long)wanted);

    /* Message passing: node 0 numbers its messages; all other nodes watch. */
    hiroba_barrier();
    if (node == 0) {
        for (uint64_t i = 1; i <= MESSAGES; i++) {
            hiroba_store(data, i * 10);
            hiroba_store(flag, i);
        }
    } else {
        uint64_t seen = 0;
        while (seen < MESSAGES) {
            uint64_t now = hiroba_load(flag);
            CHECK(now >= seen, "the flag went back from %lu to %lu", (unsigned long)seen,
                  (unsigned long)now);
            uint64_t value = hiroba_load(data);
            CHECK(value >= now * 10, "flag %lu came before its data: %lu", (unsigned long)now,
                  (unsigned long)value);
            seen = now;
        }
    }
    hiroba_barrier();

    /* Plain words and an atomic share a page, and all are written at once. */
    for (uint64_t round = 1; round <= ROUNDS; round++) {
        plain[node] = round;
        hiroba_fetch_add(mixed, 1);
        plain[node + nodes] = round * 2;
        hiroba_fetch_add(mixed, 1);
        hiroba_barrier();
        CHECK(hiroba_load(mixed) == round * nodes * 2, "round %lu: the atomic beside plain data is "
              "%lu", (unsigned long)round, (unsigned long)hiroba_load(mixed));
        for (uint64_t i = 0; i < nodes; i++)
            CHECK(plain[i] == round && plain[i + nodes] == round * 2,
                  "round %lu: node %lu's words beside an atomic are %lu and %lu",
                  (unsigned long)round, (unsigned long)i, (unsigned long)plain[i],
                  (unsigned long)plain[i + nodes]);
        hiroba_barrier();
    }
    hiroba_finalize();
    return 0;
}
