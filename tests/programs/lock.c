/*
 * Proves: locks exclude and carry data. Counters under different locks share a page and lose no increment.
 * Two locks taken together keep an invariant over both. The next holder of a lock sees all data written under
 * it.
 */
#include <stdint.h>

#include "check.h"

enum { LOCKS = 5, INCREMENTS = 500, ACCOUNTS = 8, TRANSFERS = 300, RECORD = 600 };

int main(int argc, char **argv)
{
    join(&argc, &argv);
    int node = hiroba_node(), nodes = hiroba_nodes();
    uint64_t *counter = shared(LOCKS * sizeof *counter);
    int64_t *account = shared(ACCOUNTS * sizeof *account);
    uint32_t *record = shared(RECORD * sizeof *record);

    /* Lock numbers need not be small or dense. */
    for (int i = 0; i < INCREMENTS; i++)
        for (int k = 0; k < LOCKS; k++) {
            int which = (k + node + i) % LOCKS;
            hiroba_lock((unsigned)which * 1000003u);
            counter[which]++;
            hiroba_unlock((unsigned)which * 1000003u);
        }
    hiroba_barrier();
    for (int k = 0; k < LOCKS; k++)
        CHECK(counter[k] == (uint64_t)INCREMENTS * (uint64_t)nodes, "counter %d is %lu", k,
              (unsigned long)counter[k]);

    /* Transfers hold the locks of both accounts, the lower number first. */
    uint32_t random = 12345u + (uint32_t)node;
    for (int i = 0; i < TRANSFERS; i++) {
        random = random * 1664525u + 1013904223u;
        unsigned a = (random >> 8) % ACCOUNTS, b = (random >> 16) % ACCOUNTS;
        if (a == b)
            continue;
        hiroba_lock(10 + (a < b ? a : b));
        hiroba_lock(10 + (a < b ? b : a));
        account[a] -= random >> 24;
        account[b] += random >> 24;
        hiroba_unlock(10 + a);
        hiroba_unlock(10 + b);
    }
    hiroba_barrier();
    int64_t sum = 0;
    for (int a = 0; a < ACCOUNTS; a++)
        sum += account[a];
    CHECK(sum == 0, "transfers created %ld", (long)sum);

    /* A record is rewritten as a whole by each holder. */
    for (int i = 0; i < 100; i++) {
        hiroba_lock(77);
        for (int k = 1; k < RECORD; k++)
            CHECK(record[k] == record[0] + (record[0] ? (uint32_t)k : 0),
                  "word %d of the record is %u beside %u", k, (unsigned)record[k],
                  (unsigned)record[0]);
        record[0]++;
        for (int k = 1; k < RECORD; k++)
            record[k] = record[0] + (uint32_t)k;
        hiroba_unlock(77);
    }
    hiroba_barrier();
    CHECK(record[0] == (uint32_t)nodes * 100, "the record was rewritten %u times",
          (unsigned)record[0]);
    hiroba_finalize();
    return 0;
}
