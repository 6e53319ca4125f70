/*
 * Proves: a program can read its own account. Node 1 reads PAGES pages of node 0, one after the other. The
 * times in its account add up to the elapsed time, and it has waited for pages. With "each", which goes with
 * --prefetch off, each page costs a fault and is fetched alone, even if the program gives hints; otherwise
 * most pages are fetched ahead.
 */
#include <stdbool.h>
#include <stdint.h>

#include "check.h"

enum { PAGES = 256, PAGE_BYTES = 4096 };

static double sum(const hiroba_account *a)
{
    return a->compute_s + a->read_fault_s + a->write_fault_s + a->barrier_s + a->lock_s + a->serve_s + a->other_s;
}

int main(int argc, char **argv)
{
    hiroba_account none = hiroba_account_now();
    bool each = argc > 1 && strcmp(argv[1], "each") == 0;
    join(&argc, &argv);
    CHECK(sum(&none) == 0.0 && none.read_faults == 0, "there is an account before the job");
    uint32_t *words = hiroba_alloc_at((size_t)PAGES * PAGE_BYTES, 0);
    CHECK(words != NULL, "no memory");
    size_t stride = PAGE_BYTES / sizeof *words;
    if (hiroba_node() == 0)
        for (size_t page = 0; page < PAGES; page++)
            words[page * stride] = (uint32_t)page;
    hiroba_barrier();
    double began = hiroba_wtime();
    hiroba_account before = hiroba_account_now();
    if (hiroba_node() == 1) {
        CHECK(hiroba_prefetch(words, (size_t)PAGES * PAGE_BYTES) == 0, "the hint is refused");
        for (size_t page = 0; page < PAGES; page++)
            CHECK(words[page * stride] == page, "page %lu holds %u", (unsigned long)page, (unsigned)words[page * stride]);
    }
    hiroba_account after = hiroba_account_now();
    double elapsed = hiroba_wtime() - began;
    double accounted = sum(&after) - sum(&before);
    CHECK(accounted >= 0.0 && accounted <= elapsed, "%g s are accounted for in %g s", accounted, elapsed);
    if (hiroba_node() == 1) {
        uint64_t faults = after.read_faults - before.read_faults, fetched = after.pages_fetched - before.pages_fetched;
        CHECK(after.read_fault_s > before.read_fault_s, "no time was spent in faults");
        if (each)
            CHECK(faults == PAGES && fetched == PAGES, "%lu faults, %lu pages fetched", (unsigned long)faults,
                  (unsigned long)fetched);
        else
            CHECK(fetched < PAGES / 2, "%lu pages were fetched by faults", (unsigned long)fetched);
        CHECK(after.bytes_sent > before.bytes_sent && after.messages_sent > before.messages_sent, "nothing was sent");
    }
    hiroba_barrier();
    hiroba_finalize();
    return 0;
}
