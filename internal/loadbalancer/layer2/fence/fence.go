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

// Slots is the number of requests that the kernel can tell apart.
const Slots = 32

// elementsPerRun bounds the elements in one run of nft.
const elementsPerRun = 2000

// ErrGone says that the kernel does not have the rules of this Fence any more.
var ErrGone = errors.New("the fence's rules are gone: another program removed or replaced them")

// A Fence is the table in the network namespace of the thread that opened it. Only one goroutine may use it, and it
// must stay in that namespace.
type Fence struct {
	table     *nft.Table
	reader    nft.Reader
	loaded    handles // of the tables that the last Reload made
	grant     time.Duration
	sock      int
	lo        *unix.SockaddrLinklayer
	devices   map[string]int // their indices by name
	guarded   map[netip.Addr]bool
	held      map[netip.Addr]bool
	confirmed [Slots]time.Time

	forward, forwardWant map[element]string // the targets in the kernel, and the wanted ones
	routedKnown          bool               // forwardWant has the elements for addresses by BGP
	routedKept           bool               // the kernel may still have elements for them from an earlier process
	forwardErr           error
	released             map[netip.Addr]time.Time // when, for some seconds
}

// Open loads the rules without devices and addresses, and removes those of a process before this one. The caller has the
// Lock. grant is the duration of a grant.
func Open(ctx context.Context, grant time.Duration) (*Fence, error) {
	f := &Fence{table: nft.New(numbers.TableFence), grant: grant, devices: map[string]int{}, guarded: map[netip.Addr]bool{}, held: map[netip.Addr]bool{}, released: map[netip.Addr]time.Time{}}
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

// openSocket returns a socket and the loopback interface's address to send to.
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

// Close closes the socket. The rules stay, and mute the node after the last grant.
func (f *Fence) Close() {
	_ = unix.Close(f.sock)
	f.reader.Close()
	f.table.Close()
}

// Lock makes this process the only one that may open or remove the fence of the node, until Release. The error wraps
// nft.ErrLocked if another process has the lock.
func Lock(ctx context.Context) (*nft.Lock, error) {
	l, err := nft.Acquire(ctx, numbers.TableLockSpeaker)
	if errors.Is(err, nft.ErrLocked) {
		err = fmt.Errorf("another fairway speaker runs on this node: %w [end it first]", err)
	}
	return l, err
}

// Remove removes the rules. It fails if a speaker runs.
func Remove(ctx context.Context) error {
	switch lock, err := Lock(ctx); {
	case err == nil:
		defer lock.Release()
	case !errors.Is(err, errors.ErrUnsupported): // such a kernel cannot have the rules
		return err
	}
	t := nft.New(numbers.TableFence)
	defer t.Close()
	return t.Run(ctx, removal+forwardRemoval)
}

var removal = fmt.Sprintf("add table netdev %s\ndelete table netdev %[1]s\n", numbers.TableFence)

// Reload loads the rules again, with the devices and guarded addresses that the Fence knows and the addresses that the
// node holds. No request is granted afterwards. After an error the kernel may still have the rules of before, and the
// caller must not confirm a request until Reload succeeds.
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
	f.loadForwarding(ctx)
	if err := f.Hold(ctx, held, nil); err != nil {
		return err
	}
	f.loaded, err = f.handles(ctx)
	return err
}

// handles are the handles of the tables netdev fairway-fence, ip fairway-former and ip6 fairway-former; 0: there is no
// such table. A table that another program has made again has another handle.
type handles [3]uint64

func (f *Fence) handles(ctx context.Context) (all handles, err error) {
	for i, t := range []struct {
		family nft.Family
		name   string
	}{{nft.Netdev, numbers.TableFence}, {nft.IPv4, numbers.TableFormer}, {nft.IPv6, numbers.TableFormer}} {
		if all[i], _, err = f.reader.Table(ctx, t.family, t.name); err != nil {
			return all, err
		}
	}
	return all, nil
}

// kernelGrant returns the timeout of the kernel's elements. The kernel rounds up to its clock ticks, which are at most
// 10 ms long.
func (f *Fence) kernelGrant() time.Duration { return f.grant - 12*time.Millisecond }

// Devices adds the interfaces on which the node announces. The rules check all packets that leave through them, also
// after a later call leaves an interface out. An interface that was made again must be named again.
func (f *Fence) Devices(ctx context.Context, names []string) error {
	var text strings.Builder
	found := map[string]int{}
	for _, name := range slices.Sorted(slices.Values(names)) {
		i, err := net.InterfaceByName(name)
		if err != nil || f.devices[name] == i.Index {
			continue // the interface is gone, or has a fence already
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

// chainOf returns the chain of an interface. The name is in hexadecimal, because nft does not read all names.
func chainOf(device string) string {
	return fmt.Sprintf("egress-%x", device)
}

// Guard replaces the guarded addresses. The node announces none of them without a grant.
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

// Hold changes the addresses that the node holds, and writes the targets of SetForwarding.
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

// hold writes changes and targets, in one transaction unless there are too many. The addresses that leave come before
// the new ones.
func (f *Fence) hold(ctx context.Context, add, drop []netip.Addr) error {
	forward, atOnce := f.forwardChanges()
	forward = append(forward, f.releaseChanges(add, drop)...)
	if n := len(forward) + len(add) + len(drop); n == 0 {
		return nil
	} else if n <= elementsPerRun {
		text := strings.Join(forward, "") + elements("delete", "held", drop) + elements("add", "held", add)
		if err := f.table.Run(ctx, text); err != nil {
			return err
		}
		f.forwardWritten()
		return nil
	}
	if err := f.runForward(ctx, forward, atOnce); err != nil {
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

// elements returns a command for elements of a pair of sets, one for each family.
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

// Ticket begins a request. The request's grant counts from now on. It fails with ErrGone if the kernel does not have the
// rules that this Fence has loaded.
func (f *Fence) Ticket(ctx context.Context, slot int) error {
	if since := time.Since(f.confirmed[slot]); since < f.grant {
		return fmt.Errorf("slot %d was granted %v ago", slot, since)
	}
	now, err := f.handles(ctx)
	if err != nil {
		return err
	}
	if now != f.loaded {
		return ErrGone
	}
	return f.mark(numbers.MarkTicket | uint32(slot))
}

// Confirm tells the kernel that the request of a slot was granted.
func (f *Fence) Confirm(slot int) error {
	err := f.mark(numbers.MarkConfirm | uint32(slot))
	f.confirmed[slot] = time.Now()
	return err
}

// mark sends a packet with a mark, which the rules drop. A packet that is not dropped shows that the rules are gone.
func (f *Fence) mark(mark uint32) error {
	if err := unix.SetsockoptInt(f.sock, unix.SOL_SOCKET, unix.SO_MARK, int(mark)); err != nil {
		return fmt.Errorf("mark a packet: %w [needs CAP_NET_ADMIN]", err)
	}
	switch err := unix.Sendto(f.sock, make([]byte, 50), unix.MSG_DONTWAIT, f.lo); {
	case errors.Is(err, unix.ENOBUFS):
		return nil // a rule has dropped it
	case err != nil:
		return fmt.Errorf("send to the loopback interface: %w", err)
	}
	return ErrGone
}
