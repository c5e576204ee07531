package iptables

import (
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/fairway-net/fairway/internal/service"
	"github.com/fairway-net/fairway/internal/testing/testnet"
)

// other runs a command that changes rules.
func other(t testing.TB, command string) {
	t.Helper()
	f := strings.Fields(command)
	if out, err := exec.Command(f[0], f[1:]...).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v: %s", command, err, out)
	}
}

// check is a Check that may read.
func check(t testing.TB, d *Datapath) bool {
	t.Helper()
	d.nextRead = time.Time{} // as if the last read was long ago
	drift, err := d.Check(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return !drift.Any()
}

// A scene is a datapath whose rules other programs change.
type scene struct {
	*testing.T
	b *service.Builder
	d *Datapath
}

// known checks that the datapath knows of no change by another program.
func (t *scene) known(when string) {
	t.Helper()
	if settled, err := t.d.helper.watch.Settled(t.Context()); err != nil || !settled {
		t.Errorf("%s: settled %v (%v): not all of our transactions are counted", when, settled, err)
	}
}

// step changes Services, and checks that the kernel holds them then.
func (t *scene) step(when string, change func()) {
	t.Helper()
	change()
	sync(t, t.d, t.b.Table(settings()))
	if !check(t, t.d) {
		t.Errorf("%s: what was put right is taken for damage", when)
	}
	t.known(when)
	held, err := open(t, NFT).Adopt(t.Context())
	if err != nil {
		t.Fatalf("%s: %v", when, err)
	}
	if diff := service.Diff(held.Table, t.b.Table(settings())); len(diff) > 0 {
		t.Errorf("%s: %d frontends differ", when, len(diff))
	}
}

// TestNotices: with iptables-nft Check finds another program's change by the kernel's count of changes, and reads the
// rules once. The next Sync repairs the rules.
func TestNotices(t *testing.T) {
	testnet.Enter(t)
	s := &scene{t, cluster(5), open(t, NFT)}
	s.step("the first Sync", func() {})
	s.step("an endpoint", func() { s.b.Set(numbered(2, 3)) })
	s.step("a Service more", func() { s.b.Set(numbered(7, 2)) })
	s.step("a Service less", func() { s.b.Delete(numbered(1, 2).Name) })
	s.step("many", func() {
		for i := range 50 {
			s.b.Set(numbered(100+i, 1))
		}
	})
	s.step("many, whose chains have as many rules as before", func() {
		for i := range 50 {
			e, other := numbered(100+i, 1), numbered(300+i, 1)
			for k, f := range e.Frontends {
				f.Internal, f.External = other.Frontends[k].Internal, other.Frontends[k].External
			}
			s.b.Set(e)
		}
	})

	other(t, "iptables-nft -t nat -A POSTROUTING -s 192.0.2.1 -j MASQUERADE")
	if !check(t, s.d) {
		t.Error("another program's own rule is taken for damage")
	}
	s.known("after another program's own rule")
	other(t, "iptables-nft -t nat -Z KUBE-MARK-MASQ")
	if !check(t, s.d) {
		t.Error("counters that were set to zero are taken for damage")
	}

	damage := "iptables-nft -t nat -D KUBE-SERVICES 2"
	for _, more := range []func(){func() {}, func() { s.b.Set(numbered(8, 2)) }, func() { s.b.Set(numbered(9, 2)); s.b.Set(numbered(3, 1)) }} {
		other(t, damage)
		read := s.d.reader.Tables
		if check(t, s.d) || s.d.repair == nil {
			t.Errorf("after %s: not found", damage)
		}
		if n := s.d.reader.Tables - read; n != 4 {
			t.Errorf("after %s: %d tables were read, want nat and filter of two families", damage, n)
		}
		s.step("after "+damage, more)
	}

	// No Check runs between another program's change and our own of the same chain.
	other(t, damage)
	s.b.Set(numbered(200, 2))
	sync(t, s.d, s.b.Table(settings()))
	if check(t, s.d) {
		t.Error("damage before a Sync is taken for its work")
	}
	s.step("damage before a Sync", func() {})
}
