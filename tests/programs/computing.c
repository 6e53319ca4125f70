/* Computes for a while, measured in processor time and not in wall time. */
#include <hiroba.h>
#include <time.h>

int main(int argc, char **argv)
{
    if (hiroba_init(&argc, &argv) != 0)
        return 1;
    volatile unsigned long value = 1;
    while (clock() < CLOCKS_PER_SEC / 4)
        for (int step = 0; step < 100000; step++)
            value = value * 3 + 1;
    hiroba_finalize();
    return 0;
}
