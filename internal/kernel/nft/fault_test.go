package nft

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/fairway-net/fairway/internal/testing/childfault"
)

// A change is the start of a mode on a node: from one ruleset to the next.
type change struct {
	name      string
	from      *Ruleset // the ruleset before; nil: none
	to        *Ruleset
	key, next []byte // the element that blocks packets, in each ruleset
	reload    bool   // the kernel runs the ruleset, but another program changed its rules
	every     int    // of this many read-only steps one fails
}

func changes() []change {
	addr, port := []byte{127, 0, 0, 1}, []byte{127, 0, 0, 1, 0, 9, 0, 0}
	one, two := blocks("type ipv4_addr"), blocks("type ipv4_addr . inet_service")
	moved := &Ruleset{Source: strings.Replace(one.Source, "hook output priority 0", "hook postrouting priority 5", 1)}
	more := &Ruleset{Source: strings.Replace(one.Source, "\tset blocked", "\tset other {\n\t\ttype ipv6_addr\n\t}\n\tchain other {\n\t\tip6 daddr @other drop\n\t}\n\tset blocked", 1)}
	return []change{
		{"first start", nil, one, nil, addr, false, 0},
		{"in place", more, one, addr, addr, false, 0},
		{"upgrade to another shape", one, two, addr, port, false, 4},
		{"downgrade from another shape", two, moved, port, addr, false, 0},
		{"rules changed by another program", one, one, addr, addr, true, 0},
	}
}

// start does the same as a mode: declare, fill, switch, and remove the remains.
func (c *change) start(ctx context.Context, t *Table) error {
	did, err := t.Declare(ctx, c.to)
	if err != nil {
		return err
	}
	there := false
	var ws []Write
	err = t.Elements(ctx, "blocked", func(e Element) error {
		if here := slices.Equal(e.Key, c.next); here {
			there = true
		} else {
			ws = append(ws, Write{Set: "blocked", Key: e.Key, Del: true})
		}
		return nil
	})
	if !there {
		ws = append(ws, Write{Set: "blocked", Key: c.next, Add: true})
	}
	if err == nil {
		err = t.Commit(ctx, nil, ws)
	}
	if err != nil || did == Unchanged && !c.reload {
		return err
	}
	switch did, err = t.Load(ctx, c.to, true); {
	case err != nil:
		return err
	case did == Recreated:
		return ErrRecreated
	}
	return t.Prune(ctx, c.to)
}

// blocked reports whether the rules drop a packet to the address of the element.
func blocked(t *testing.T) bool {
	t.Helper()
	c, err := net.Dial("udp", "127.0.0.1:9")
	must(t, err)
	defer c.Close()
	_, err = c.Write([]byte("x"))
	return errors.Is(err, unix.EPERM)
}

// A bench runs the same change many times. Each run begins with the same state of the kernel.
type faultBench struct {
	*change
	t      *testing.T
	nft    string
	before string          // the state of the kernel at the start
	after  string          // the state in the end
	whole  map[string]bool // the states between two writes
	healed map[string]bool // the states from which a process reached the end
}

// reset makes the kernel return to the start.
func (b *faultBench) reset() {
	b.t.Helper()
	b.load("flush ruleset\n" + b.before)
}

func (b *faultBench) load(text string) {
	b.t.Helper()
	cmd := exec.Command(b.nft, "-f", "-")
	cmd.Stdin = strings.NewReader(text)
	if out, err := cmd.CombinedOutput(); err != nil {
		b.t.Fatalf("nft: %v: %s", err, out)
	}
}

// held returns the state of the kernel.
func (b *faultBench) held() string {
	b.t.Helper()
	out, err := exec.Command(b.nft, "list", "ruleset").CombinedOutput()
	must(b.t, err)
	return string(out)
}

// check is called after each fault. The kernel has all old rules or all new rules. The next run, of this process or of
// another, makes the kernel run the new rules.
func (b *faultBench) check(name, kind string, table *Table, err error, mayWork bool) {
	b.t.Helper()
	is := b.held()
	if !b.whole[is] {
		b.t.Errorf("%s: the kernel holds what no transaction leaves:\n%s", name, is)
	}
	if is := blocked(b.t); !is && b.from != nil {
		b.t.Errorf("%s: a packet passes", name)
	}
	switch {
	case err == nil && (!mayWork || is != b.after):
		b.t.Errorf("%s: no error, and the kernel holds\n%s", name, is)
	case err != nil && !(strings.Contains(err.Error(), "nft: ") && strings.HasSuffix(err.Error(), "]")) && !errors.Is(err, errWrite):
		b.t.Errorf("%s: error %q, which does not name the program with advice", name, err)
	}
	next := New(table.Name()) // another process remembers nothing
	defer next.Close()
	for who, table := range map[string]*Table{"the next run after one " + kind: table, "the next process": next} {
		if !b.healed[who+is] {
			b.healed[who+is] = true
			b.load("flush ruleset\n" + is)
			b.heals(name+": "+who, table)
		}
	}
}

// heals runs the change again without faults, and expects the state of the end.
func (b *faultBench) heals(name string, table *Table) {
	b.t.Helper()
	if err := b.start(b.t.Context(), table); err != nil {
		b.t.Errorf("%s: %v", name, err)
	} else if is := b.held(); is != b.after {
		b.t.Errorf("%s leaves\n%s\nwant\n%s", name, is, b.after)
	}
}

var errWrite = errors.New("this write fails")

// TestStepFaults: while a table gets another ruleset, nft fails at each of its system calls in each way, and each write
// of this process fails.
func TestStepFaults(t *testing.T) {
	for _, c := range changes() {
		t.Run(c.name, func(t *testing.T) { stepFaults(t, &c) })
	}
}

func stepFaults(t *testing.T, c *change) {
	table, _ := open(t)
	must(t, exec.Command("ip", "link", "set", "lo", "up").Run())
	b := &faultBench{change: c, t: t, whole: map[string]bool{}, healed: map[string]bool{}}
	var err error
	b.nft, err = exec.LookPath("nft")
	must(t, err)
	must(t, table.Delete(t.Context()))
	if c.from != nil {
		_, err := table.Load(t.Context(), c.from, false)
		must(t, err)
		must(t, table.Commit(t.Context(), nil, []Write{{Set: "blocked", Key: c.key, Add: true}}))
	}
	if c.reload {
		b.load("add rule inet tested output ip daddr 192.0.2.1 drop")
	}
	b.before = b.held()
	table.Close()

	programs := childfault.Intercept(t, "nft")
	writes := 0
	table.FailWrites(func() error { writes++; b.whole[b.held()] = true; return nil })
	must(t, c.start(t.Context(), table))
	table.FailWrites(nil)
	b.after = b.held()
	b.whole[b.after] = true
	programs.Each(childfault.Sample{Changes: 4, Asks: c.every}, func(name string, step int, f childfault.Fault) {
		b.reset()
		table := New("tested")
		defer table.Close()
		programs.Arm(step, f)
		err := programs.Run(t.Context(), func(ctx context.Context) error { return c.start(ctx, table) })
		steps := programs.Steps()
		if left := programs.Left(); left != nil {
			t.Errorf("%s: left %v", name, left)
		}
		programs.Disarm()
		b.check(name, f.String(), table, err, steps[step-1].Asks(f))
	})
	for fails := range writes {
		b.reset()
		table := New("tested")
		defer table.Close()
		n := 0
		table.FailWrites(func() error {
			if n++; n > fails {
				return errWrite
			}
			return nil
		})
		err := c.start(t.Context(), table)
		table.FailWrites(nil)
		b.check(fmt.Sprint("write ", fails+1), "write", table, err, false)
	}
}
