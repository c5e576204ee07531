package ipvs

import (
	"testing"

	"golang.org/x/sys/unix"

	"github.com/fairway-net/fairway/internal/service"
)

// TestLackingScheduler: a scheduler that the kernel lacks is replaced by round robin, and requested once. The datapath
// knows its abilities without a request to the kernel.
func TestLackingScheduler(t *testing.T) {
	d := newDatapath(t)
	asked := 0
	d.genl.fail = func() error {
		asked++
		return unix.ENOENT
	}
	if a := d.Info().Capabilities.Algorithms; !a.Has(service.Maglev) || asked > 0 {
		t.Errorf("offers %v after %d questions", a, asked)
	}
	maglev := func(f *service.Frontend) { f.Balance = service.Maglev }
	for _, weight := range []uint16{0, 3} {
		want := table(maglev, ep("10.244.1.5:8080", weight))
		differ := d.changes(want, false)
		d.state.schedulers = d.schedulers
		if err := d.tryScheduler(t.Context(), differ); err != nil {
			t.Fatal(err)
		}
		r, err := d.render(want, differ, false)
		if err != nil {
			t.Fatal(err)
		}
		for i, s := range r.servers {
			if s == nil || s.sched != map[uint16]string{0: "rr", 3: "wrr"}[weight] {
				t.Errorf("weight %d: %v is %+v", weight, i, s)
			}
		}
	}
	if asked != 1 {
		t.Errorf("asked %d times", asked)
	}
}
