package iptables

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/datapath"
	"github.com/fairway-net/fairway/internal/datapath/iptables/read"
	"github.com/fairway-net/fairway/internal/kernel/xtables"
	"github.com/fairway-net/fairway/internal/service"
	"github.com/fairway-net/fairway/internal/testing/childfault"
	"github.com/fairway-net/fairway/internal/testing/testnet"
)

// faultTables returns two tables that differ in each way that matters to the order of writes. A Service gets its first
// endpoint, a Service loses its last endpoint, Services come, go and change. The functions more add Services.
func faultTables(more ...func(side int) *service.Entry) (tables [2]*service.Table) {
	service6 := func(i, eps int) *service.Entry { // as numbered, in IPv6
		e := numbered(i, eps)
		f := e.Frontends[0]
		to6 := func(a netip.AddrPort) netip.AddrPort {
			b := a.Addr().As4()
			return netip.AddrPortFrom(netip.AddrFrom16([16]byte{0: 0xfd, 12: b[0], b[1], b[2], b[3]}), a.Port())
		}
		f.Addr = to6(f.Addr)
		for i := range f.Internal.Endpoints {
			f.Internal.Endpoints[i].Addr = to6(f.Internal.Endpoints[i].Addr)
		}
		return e
	}
	for side := range tables {
		b := service.NewBuilder()
		affinity := numbered(1, 2+side)
		affinity.Frontends[0].Affinity = time.Hour
		for _, e := range []*service.Entry{affinity, numbered(2, 1+side), numbered(3, 2*side), numbered(4, 2-2*side), numbered(5+side, 2), numbered(9, 3+side), service6(7, 2), service6(8, 2*side)} {
			if f := e.Frontends[0]; len(f.Internal.Endpoints) == 0 {
				f.Internal.Action, f.Internal.Masquerade = service.Reject, service.MasqueradeHairpin
			}
			b.Set(e)
		}
		for _, one := range more {
			b.Set(one(side))
		}
		tables[side] = b.Table(settings())
	}
	return tables
}

// faultBench goes to and fro between two tables. Each time a program fails at one step.
type faultBench struct {
	*testing.T
	v        Variant
	programs *childfault.Programs
	tables   [2]*service.Table
	held     [2]map[string]string // the kernel's rules for each table, by family and iptables table
}

// ownMark matches the number of an endpoint with affinity, which is another each time.
var ownMark = regexp.MustCompile(`(0xf[ab]0000)[0-9a-f]+`)

// holds returns the kernel's rules of both families: the sorted lines of each table.
func (b *faultBench) holds() map[string]string {
	b.Helper()
	all := map[string][]string{}
	for _, is4 := range read.Families() {
		err := xtables.Save(b.Context(), b.v, is4, func(l xtables.Line) {
			if at := fmt.Sprint(is4, " ", l.Table); l.Kind == xtables.Rule || l.Kind == xtables.Chain && l.Text != "ACCEPT" {
				all[at] = append(all[at], fmt.Sprintln(l.Kind, l.Chain, ownMark.ReplaceAllString(l.Text, "$1")))
			}
		})
		if err != nil {
			b.Fatal(err)
		}
	}
	texts := map[string]string{}
	for at, lines := range all {
		slices.Sort(lines)
		texts[at] = strings.Join(lines, "")
	}
	return texts
}

// check runs after each fault on the way from one table to the other. Each frontend must be the old or the new
// frontend, table nat of each family must be old or new as a whole, and each rule of table filter must be an old or a
// new rule.
//
// If iptables-nft-restore 1.8.9 does not learn the kernel's revisions, it writes other revisions. iptables-nft-save
// prints other revisions of DNAT wrongly. Other revisions of "-m mark" never match. A Sync that writes everything
// notices; after another one, the next process cannot read DNAT as a table, and writes it again.
func (b *faultBench) check(name string, from int, err error, mayWork bool) (misprinted bool) {
	b.Helper()
	to := 1 - from
	is := b.holds()
	if mayWork && err != nil && strings.Contains(err.Error(), "the kernel holds other rules") {
		return true
	}
	if err == nil && mayWork && strings.Contains(is["true nat"], "--to-destination 3.0.0.0-0.0.0.0") {
		if held, err := b.adopted(); err == nil || !held.Found {
			b.Errorf("%s: adopted %v (%v)", name, held, err)
		}
		return true
	}
	for at, text := range is {
		old, want := b.held[from][at], b.held[to][at]
		if strings.HasSuffix(at, " nat") && text != old && text != want {
			b.Errorf("%s: %s is neither old nor new:\n%s", name, at, text)
		}
		for line := range strings.Lines(text) {
			if !strings.Contains(old, line) && !strings.Contains(want, line) {
				b.Errorf("%s: %s has %q, which is neither old nor new", name, at, line)
			}
		}
	}
	adopted, readErr := b.adopted()
	if readErr != nil {
		b.Fatalf("%s: %v", name, readErr)
	}
	old := map[service.Key]bool{}
	for _, c := range service.Diff(b.tables[from], adopted.Table) {
		old[c.Key()] = true
	}
	for _, c := range service.Diff(b.tables[to], adopted.Table) {
		if old[c.Key()] {
			b.Errorf("%s: %v is neither old nor new: %v", name, c.Key(), c.New)
		}
	}
	switch done := maps.Equal(is, b.held[to]); {
	case err == nil && (!mayWork || !done):
		b.Errorf("%s: no error, and the kernel holds\n%v", name, is)
	case err != nil && !program.MatchString(err.Error()) || err != nil && !strings.HasSuffix(err.Error(), "]"):
		b.Errorf("%s: error %q, which does not name the program with advice", name, err)
	}
	return false
}

// adopted returns the table that another process finds in the kernel.
func (b *faultBench) adopted() (datapath.Adopted, error) {
	d := open(b, b.v)
	defer d.Close()
	return d.Adopt(b.Context())
}

// program matches the program that an error names.
var program = regexp.MustCompile(`\b(ip6?tables-(nft|legacy)-(save|restore)|nft)\b`)

// heal makes the kernel hold a table, and checks that it does.
func (b *faultBench) heal(name string, d *Datapath, to int) {
	b.Helper()
	if _, err := d.Sync(b.Context(), b.tables[to]); err != nil {
		b.Fatalf("%s: the next Sync: %v", name, err)
	}
	if is := b.holds(); !maps.Equal(is, b.held[to]) {
		b.Fatalf("%s: the next Sync leaves\n%v\nwant\n%v", name, is, b.held[to])
	}
}

// TestStepFaults: each program that a Sync runs fails in each way at each of its system calls.
func TestStepFaults(t *testing.T) {
	for _, v := range []Variant{NFT, Legacy} {
		for name, f := range map[string]func(*faultBench){
			"first start": (*faultBench).firstStart,
			"full":        func(b *faultBench) { b.walk(false, 60) },
			"change":      func(b *faultBench) { b.walk(true, 0) },
		} {
			t.Run(v.String()+" "+name, func(t *testing.T) { f(newFaultBench(t, v)) })
		}
	}
}

// severalPorts is a Service with a port more on the second side, one of which has no endpoints.
func severalPorts(side int) *service.Entry {
	e := manyPorts(10, api.TCP, 256, 1+side)
	refused := &service.Route{Action: service.Reject}
	e.Frontends[0].Internal, e.Frontends[0].External = refused, refused
	return e
}

// newFaultBench enters a new namespace, because subtests do not share the namespace of their test.
func newFaultBench(t *testing.T, v Variant) *faultBench {
	testnet.Enter(t)
	names := []string{"nft"}
	for _, is4 := range read.Families() {
		names = append(names, xtables.Program(v, is4, "save"), xtables.Program(v, is4, "restore"), xtables.Program(v, is4, ""))
	}
	b := &faultBench{T: t, v: v, programs: childfault.Intercept(t, names...), tables: faultTables(severalPorts)}
	b.programs.Disarm()
	for side := range b.tables {
		sync(t, open(t, v), b.tables[side])
		b.held[side] = b.holds()
	}
	return b
}

// fails runs a Sync with one fault.
func (b *faultBench) fails(name string, d *Datapath, to, step int, f childfault.Fault) error {
	b.Helper()
	b.programs.Arm(step, f)
	err := b.programs.Run(b.Context(), func(ctx context.Context) error {
		_, err := d.Sync(ctx, b.tables[to])
		return err
	})
	b.programs.Disarm()
	if f == childfault.HeldBefore || f == childfault.HeldAfter {
		if !errors.Is(err, context.DeadlineExceeded) {
			b.Errorf("%s: error %v, want that of the deadline", name, err)
		}
	}
	if left := b.programs.Left(); left != nil {
		b.Errorf("%s: left %v", name, left)
	}
	return err
}

// walk goes from the first table to the second again and again, in a process that has synced the first table, or in a
// new process.
func (b *faultBench) walk(synced bool, every int) {
	b.each(childfault.Sample{Changes: 2, Asks: every}, func() *Datapath {
		before := open(b, b.v)
		defer before.Close()
		sync(b, before, b.tables[0])
		d := open(b, b.v)
		if synced {
			sync(b, d, b.tables[0])
		}
		return d
	})
}

// each tries all faults of a sample on the way of a process to the second table.
func (b *faultBench) each(sample childfault.Sample, process func() *Datapath) {
	d := process()
	err := b.fails("no fault", d, 1, 0, childfault.KilledBefore)
	d.Close()
	if err != nil {
		b.Fatal(err)
	}
	b.programs.Each(sample, func(name string, step int, f childfault.Fault) {
		d := process()
		defer func() { d.Close() }()
		err := b.fails(name, d, 1, step, f)
		steps := b.programs.Steps()
		misprinted := b.check(name, 0, err, len(steps) >= step && steps[step-1].Asks(f))
		if misprinted || step%2 == 0 {
			d.Close()
			d = open(b, b.v) // another process
		}
		b.heal(name, d, 1)
	})
}

// firstStart begins with an empty kernel each time.
func (b *faultBench) firstStart() {
	process := func() *Datapath {
		d := open(b, b.v)
		if err := d.Cleanup(b.Context()); err != nil {
			b.Fatal(err)
		}
		if out, err := exec.Command("nft", "flush", "ruleset").CombinedOutput(); err != nil {
			b.Fatalf("%v: %s", err, out)
		}
		return d
	}
	process().Close()
	start := *b
	start.tables[0], start.held[0] = &service.Table{}, b.holds()
	start.each(childfault.Sample{Changes: 2}, process)
}
