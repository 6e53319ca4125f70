// Proves: the headers compile and link as C++, and objects built in shared memory work on all nodes.
#include <cstdint>
#include <new>

#include "check.h"
#include <sms.h>
#include <tsm.h>

namespace {

struct Lock {
    explicit Lock(unsigned number) : number(number) { hiroba_lock(number); }
    ~Lock() { hiroba_unlock(number); }
    Lock(const Lock &) = delete;
    Lock &operator=(const Lock &) = delete;
    unsigned number;
};

struct Counter {
    std::uint64_t value = 0;
    void add(std::uint64_t amount)
    {
        Lock held(8);
        value += amount;
    }
};

void add_thread(void *counter)
{
    static_cast<Counter *>(counter)->add(static_cast<std::uint64_t>(hiroba_thread()) + 1);
}

} // namespace

int main(int argc, char **argv)
{
    join(&argc, &argv);
    void *region = shared(sizeof(Counter));
    if (hiroba_node() == 0)
        new (region) Counter();
    hiroba_barrier();
    Counter *counter = static_cast<Counter *>(region);
    for (int i = 0; i < 100; i++)
        counter->add(2);
    hiroba_barrier();
    std::uint64_t wanted = 200u * static_cast<std::uint64_t>(hiroba_nodes());
    CHECK(counter->value == wanted, "the counter is %lu", (unsigned long)counter->value);
    hiroba_barrier();
    CHECK(hiroba_run(add_thread, counter) == 0, "hiroba_run failed");
    hiroba_barrier();
    CHECK(counter->value > wanted, "no thread added anything");
    hiroba_finalize();
    return 0;
}
