/* An access to shared memory after hiroba_finalize is a segmentation fault, never a hang. */
#include "check.h"

int main(int argc, char **argv)
{
    join(&argc, &argv);
    volatile int *number = shared(sizeof *number);
    *number = 1;
    hiroba_barrier();
    hiroba_finalize();
    return *number == 1 ? 0 : 2;
}
