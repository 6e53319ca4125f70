/*
 * Proves: reads in equal steps, upwards or downwards, return the right values, however many pages were
 * fetched ahead. Node 0 fills an array homed on it. The other nodes read one word of a page, then one of the
 * page that is the argument's number of pages further, and so on; backwards if the argument is negative.
 * `hiroba run --stats` counts how pages were fetched.
 */
#include "check.h"

enum { PAGE_WORDS = 4096 / sizeof(long), PAGES = 600 };

int main(int argc, char **argv)
{
    join(&argc, &argv);
    long step = argc > 1 ? atol(argv[1]) : 1;
    CHECK(step != 0 && step > -PAGES && step < PAGES, "expected a number of pages as argument");
    long *words = hiroba_alloc_at(PAGES * PAGE_WORDS * sizeof *words, 0);
    CHECK(words != NULL, "hiroba_alloc_at: %s", hiroba_error_string());
    if (hiroba_node() == 0)
        for (long page = 0; page < PAGES; page++)
            words[page * PAGE_WORDS + page % PAGE_WORDS] = page + 1;
    hiroba_barrier();
    if (hiroba_node() != 0)
        for (long page = step > 0 ? 0 : PAGES - 1; page >= 0 && page < PAGES; page += step)
            CHECK(words[page * PAGE_WORDS + page % PAGE_WORDS] == page + 1, "page %ld holds %ld", page,
                  words[page * PAGE_WORDS + page % PAGE_WORDS]);
    hiroba_barrier();
    hiroba_finalize();
    return 0;
}
