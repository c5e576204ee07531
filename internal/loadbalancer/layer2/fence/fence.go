package fence

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"text/template"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairway-net/fairway/internal/kernel/nft"
	"github.com/fairway-net/fairway/internal/kernel/numbers"
)

//go:embed fence.nft.tmpl
var program string

// Slots is how many requests can be told apart.
const Slots = 32

// elementsPerRun keeps what nft reads at once small.
const elementsPerRun = 2000

// ErrGone says that the kernel does not have the rules any more: another program removed them.
var ErrGone = errors.New("the fence's rules are gone: another program removed them")

// A Fence is the table in the network namespace of the thread that opened it. It belongs to
// one goroutine, which must stay in that namespace.
type Fence struct {
	table     *nft.Table
	grant     time.Duration
	sock      int
	lo        *unix.SockaddrLinklayer
	devices   map[string]int // and their index
	guarded   map[netip.Addr]bool
	held      map[netip.Addr]bool
	confirmed [Slots]time.Time

	former, formerWant map[element]string // as it is in the kernel, and as it is to be
	routedKnown        bool               // formerWant has what routers lead to nodes
	formerKept         bool               // of that the kernel has what a process before left
	formerErr          error
}

// Open loads the rules, without devices and addresses: what a process before has left is
// removed. grant is how long a grant lasts.
func Open(ctx context.Context, grant time.Duration) (*Fence, error) {
	f := &Fence{table: nft.New(numbers.TableFence), grant: grant, devices: map[string]int{}, guarded: map[netip.Addr]bool{}, held: map[netip.Addr]bool{}}
	var err error
	if f.sock, f.lo, err = openSocket(); err != nil {
		return nil, err
	}
	if err := f.Reload(ctx, nil); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// openSocket returns a socket that sends to the loopback interface.
func openSocket() (int, *unix.SockaddrLinklayer, error) {
	lo, err := net.InterfaceByName("lo")
	if err != nil {
		return 0, nil, fmt.Errorf("find the loopback interface: %w", err)
	}
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, nil, fmt.Errorf("open packet socket: %w [needs CAP_NET_RAW]", err)
	}
	return fd, &unix.SockaddrLinklayer{Protocol: numbers.NetworkOrder(numbers.EtherTypeFence), Ifindex: lo.Index, Halen: 6}, nil
}

// Close closes the socket. The rules stay: they mute the node when the last grant is over.
func (f *Fence) Close() {
	_ = unix.Close(f.sock)
	f.table.Close()
}

// Remove removes the rules.
func Remove(ctx context.Context) error {
	t := nft.New(numbers.TableFence)
	defer t.Close()
	return t.Run(ctx, removal+formerRemoval)
}

var removal = fmt.Sprintf("add table netdev %s\ndelete table netdev %[1]s\n", numbers.TableFence)

// Reload loads the rules anew, with the devices and guarded addresses that the Fence knows, and
// those that the node holds. Nothing is granted then. If it fails, the kernel may still let
// out what it did before: nothing must be confirmed until it succeeds.
func (f *Fence) Reload(ctx context.Context, held []netip.Addr) error {
	t, err := template.New("fence").Parse(program)
	if err != nil {
		return fmt.Errorf("parse embedded ruleset: %w", err)
	}
	slots := make([]int, Slots)
	for i := range slots {
		slots[i] = i
	}
	var text strings.Builder
	text.WriteString(removal)
	err = t.Execute(&text, map[string]any{
		"Table": numbers.TableFence, "Grant": f.kernelGrant().String(), "Slots": slots,
		"EtherType": numbers.EtherTypeFence, "Ticket": numbers.MarkTicket, "Confirm": numbers.MarkConfirm,
	})
	if err != nil {
		return fmt.Errorf("render embedded ruleset: %w", err)
	}
	if err := f.table.Run(ctx, text.String()); err != nil {
		return fmt.Errorf("load the fence: %w [the kernel needs the egress hook of nf_tables: 5.16 or later]", err)
	}
	devices, guarded := f.devices, f.guarded
	f.devices, f.guarded, f.held = map[string]int{}, map[netip.Addr]bool{}, map[netip.Addr]bool{}
	if err := f.Devices(ctx, slices.Collect(maps.Keys(devices))); err != nil {
		return err
	}
	if err := f.Guard(ctx, slices.Collect(maps.Keys(guarded))); err != nil {
		return err
	}
	f.loadFormer(ctx)
	return f.Hold(ctx, held, nil)
}

// kernelGrant is what the kernel counts: it rounds up to its clock ticks, which are at most
// 10 ms.
func (f *Fence) kernelGrant() time.Duration { return f.grant - 12*time.Millisecond }

// Devices says through which interfaces the node announces: all that leaves them is checked, also
// when they are not named any more. One that was made again needs to be named again.
func (f *Fence) Devices(ctx context.Context, names []string) error {
	var text strings.Builder
	found := map[string]int{}
	for _, name := range slices.Sorted(slices.Values(names)) {
		i, err := net.InterfaceByName(name)
		if err != nil || f.devices[name] == i.Index {
			continue // it is gone, or fenced
		}
		found[name] = i.Index
		fmt.Fprintf(&text, "table netdev %s {\n\tchain %s {\n\t\ttype filter hook egress device \"%s\" priority 0; policy accept;\n"+
			"\t\tarp saddr ip @guarded4 jump gate4\n\t\ticmpv6 type nd-neighbor-advert jump gate6\n\t}\n}\n", numbers.TableFence, chainOf(name), name)
	}
	if text.Len() > 0 {
		if err := f.table.Run(ctx, text.String()); err != nil {
			return fmt.Errorf("fence interfaces %v: %w", names, err)
		}
	}
	maps.Copy(f.devices, found)
	return nil
}

// chainOf names the chain of an interface, whose name may hold what nft does not read.
func chainOf(device string) string {
	return fmt.Sprintf("egress-%x", device)
}

// Guard says which addresses are load balancers': no node announces them without a grant.
func (f *Fence) Guard(ctx context.Context, addrs []netip.Addr) error {
	want := map[netip.Addr]bool{}
	var add, drop []netip.Addr
	for _, a := range addrs {
		if want[a] = true; !f.guarded[a] {
			add = append(add, a)
		}
	}
	for a := range f.guarded {
		if !want[a] {
			drop = append(drop, a)
		}
	}
	if err := f.change(ctx, "guarded", add, drop); err != nil {
		return fmt.Errorf("guard addresses: %w", err)
	}
	f.guarded = want
	return nil
}

// Hold says which addresses the node holds: first those that it does not any more.
func (f *Fence) Hold(ctx context.Context, add, drop []netip.Addr) error {
	add = slices.DeleteFunc(slices.Clone(add), func(a netip.Addr) bool { return f.held[a] })
	drop = slices.DeleteFunc(slices.Clone(drop), func(a netip.Addr) bool { return !f.held[a] })
	if err := f.hold(ctx, add, drop); err != nil {
		return fmt.Errorf("hold addresses: %w", err)
	}
	for _, a := range drop {
		delete(f.held, a)
	}
	for _, a := range add {
		f.held[a] = true
	}
	return nil
}

// hold writes what Hold and Former say: in one transaction, if that is not too much at once.
func (f *Fence) hold(ctx context.Context, add, drop []netip.Addr) error {
	former, whole := f.formerChanges()
	if n := len(former) + len(add) + len(drop); n == 0 {
		return nil
	} else if n <= elementsPerRun {
		text := strings.Join(former, "") + elements("delete", "held", drop) + elements("add", "held", add)
		if err := f.table.Run(ctx, text); err != nil {
			return err
		}
		f.formerDone()
		return nil
	}
	if err := f.changeFormer(ctx, former, whole); err != nil {
		return err
	}
	return f.change(ctx, "held", add, drop)
}

// change deletes elements from a pair of sets and adds others.
func (f *Fence) change(ctx context.Context, set string, add, drop []netip.Addr) error {
	for _, step := range []struct {
		verb  string
		addrs []netip.Addr
	}{{"delete", drop}, {"add", add}} {
		for some := range slices.Chunk(step.addrs, elementsPerRun) {
			if err := f.table.Run(ctx, elements(step.verb, set, some)); err != nil {
				return err
			}
		}
	}
	return nil
}

func elements(verb, set string, addrs []netip.Addr) string {
	var v4, v6 []string
	for _, a := range addrs {
		if a.Is4() {
			v4 = append(v4, a.String())
		} else {
			v6 = append(v6, fmt.Sprintf("0x%x", a.AsSlice()))
		}
	}
	var text strings.Builder
	for family, all := range map[int][]string{4: v4, 6: v6} {
		if len(all) > 0 {
			fmt.Fprintf(&text, "%s element netdev %s %s%d { %s }\n", verb, numbers.TableFence, set, family, strings.Join(all, ", "))
		}
	}
	return text.String()
}

// Ticket begins a request: what is granted to it lasts for the grant's time from now. It
// fails with ErrGone if the rules are not there.
func (f *Fence) Ticket(slot int) error {
	if since := time.Since(f.confirmed[slot]); since < f.grant {
		return fmt.Errorf("slot %d was granted %v ago", slot, since)
	}
	return f.mark(numbers.MarkTicket | uint32(slot))
}

// Confirm says that the request of a slot was granted.
func (f *Fence) Confirm(slot int) error {
	err := f.mark(numbers.MarkConfirm | uint32(slot))
	f.confirmed[slot] = time.Now()
	return err
}

// mark sends a packet with a mark, which the rules drop.
func (f *Fence) mark(mark uint32) error {
	if err := unix.SetsockoptInt(f.sock, unix.SOL_SOCKET, unix.SO_MARK, int(mark)); err != nil {
		return fmt.Errorf("mark a packet: %w [needs CAP_NET_ADMIN]", err)
	}
	switch err := unix.Sendto(f.sock, make([]byte, 50), unix.MSG_DONTWAIT, f.lo); {
	case errors.Is(err, unix.ENOBUFS):
		return nil // dropped by our rule
	case err != nil:
		return fmt.Errorf("send to the loopback interface: %w", err)
	}
	return ErrGone
}
