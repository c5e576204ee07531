package observe

import (
	"context"
	"encoding/binary"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/fairway-net/fairway/internal/kernel/nft"
	"github.com/fairway-net/fairway/internal/kernel/numbers"
	"github.com/fairway-net/fairway/internal/path/trace"
)

// tracesPerSecond bounds the traced packets of each rule. A probe and its answer are a handful.
const tracesPerSecond = 200

// The chains of the probe's table. The first two see the probe, the last two its answer.
const (
	chainPrerouting      = "prerouting"
	chainOutput          = "output"
	chainReplyPrerouting = "reply-prerouting"
	chainReplyOutput     = "reply-output"
)

// seenPorts is the set of the source ports that tagged packets had when they came to this node. On a node behind
// masquerading the port is not the client's. maxSeenPorts bounds it.
const (
	seenPorts    = "seen-ports"
	maxSeenPorts = 1024
)

// tableName returns the name of the run's table.
func tableName(run string) string { return numbers.TablePath + run }

// arm makes the probe's table. Releasing the lock, or the end of the process, removes it.
//
//	prerouting, output -460:  ip dscp TAG, tcp flags syn, th dport { … } → remember th sport, nftrace on
//	prerouting, output -199:  ct direction reply, ct original proto-src @seen-ports, tcp flags syn or rst → nftrace on
func arm(ctx context.Context, o trace.Order) (*nft.Lock, error) {
	name := tableName(o.Run)
	lock, err := nft.Acquire(ctx, name)
	if err != nil {
		return nil, err
	}
	err = lock.Fill(ctx, name, func(c *nftables.Conn, t *nftables.Table) error { return (&builder{c, t, o}).build() })
	if err != nil {
		lock.Release()
		return nil, err
	}
	return lock, nil
}

// A builder queues the objects of the table.
type builder struct {
	*nftables.Conn
	table *nftables.Table
	order trace.Order
}

func (b *builder) build() error {
	// The IDs are the library's own job, but its counter is not safe for two goroutines.
	seen := &nftables.Set{ID: 1, Table: b.table, Name: seenPorts, KeyType: nftables.TypeInetService, Dynamic: true, Size: maxSeenPorts}
	if err := b.AddSet(seen, nil); err != nil {
		return err
	}
	ports := &nftables.Set{ID: 2, Table: b.table, Name: "ports", KeyType: nftables.TypeInetService, Constant: true}
	if err := b.AddSet(ports, portElements(b.order)); err != nil {
		return err
	}
	for _, hook := range []struct {
		name, reply string
		number      *nftables.ChainHook
	}{{chainPrerouting, chainReplyPrerouting, nftables.ChainHookPrerouting}, {chainOutput, chainReplyOutput, nftables.ChainHookOutput}} {
		chain := b.chain(hook.name, hook.number, numbers.HookTrace)
		for _, is4 := range []bool{true, false} {
			b.rule(chain, b.probe(is4), b.remember(seen))
		}
		if b.order.Relayed {
			for _, e := range b.order.Endpoints {
				b.rule(chain, b.relayed(e.Addr().Is4(), e.Addr().AsSlice(), e.Port()), b.remember(seen))
			}
		}
		reply := b.chain(hook.reply, hook.number, numbers.HookTraceReply)
		b.rule(reply, append(b.reply(seen), b.answer()...), nil)
		b.rule(reply, append(b.reply(seen), &expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1}, notEqual(b.order.Proto)), nil)
	}
	return nil
}

// portElements returns the destination ports that the probe can have.
func portElements(o trace.Order) (all []nftables.SetElement) {
	for _, port := range probePorts(o) {
		all = append(all, nftables.SetElement{Key: binary.BigEndian.AppendUint16(nil, port)})
	}
	return all
}

// probePorts returns the frontend's port and the endpoints' ports.
func probePorts(o trace.Order) []uint16 {
	ports := []uint16{o.To.Port()}
	for _, e := range o.Endpoints {
		if !slices.Contains(ports, e.Port()) {
			ports = append(ports, e.Port())
		}
	}
	return ports
}

func (b *builder) chain(name string, hook *nftables.ChainHook, priority int32) *nftables.Chain {
	return b.AddChain(&nftables.Chain{
		Name: name, Table: b.table, Type: nftables.ChainTypeFilter, Hooknum: hook, Priority: nftables.ChainPriorityRef(nftables.ChainPriority(priority)),
	})
}

// rule adds a rule: the conditions, then a limit, a counter, what to do, and the trace.
func (b *builder) rule(chain *nftables.Chain, conditions, do []expr.Any) {
	all := append(conditions, &expr.Limit{Type: expr.LimitTypePkts, Rate: tracesPerSecond, Unit: expr.LimitTimeSecond, Burst: tracesPerSecond}, &expr.Counter{})
	all = append(all, do...)
	all = append(all, &expr.Immediate{Register: 1, Data: []byte{1}}, &expr.Meta{Key: expr.MetaKeyNFTRACE, SourceRegister: true, Register: 1})
	b.AddRule(&nftables.Rule{Table: b.table, Chain: chain, Exprs: all})
}

// probe returns the conditions for the probe on its way to the endpoint.
func (b *builder) probe(is4 bool) []expr.Any {
	all := b.family(is4)
	if tag := b.order.Tag; tag != 0 {
		if is4 { // the second byte, without ECN
			all = append(all, field(expr.PayloadBaseNetworkHeader, 1, []byte{0xfc}, []byte{tag << 2})...)
		} else { // 4 bits of version, 8 of the traffic class
			all = append(all, field(expr.PayloadBaseNetworkHeader, 0, []byte{0x0f, 0xc0}, binary.BigEndian.AppendUint16(nil, uint16(tag)<<6))...)
		}
	}
	if client := b.order.Client; b.order.Tag == 0 && client.IsValid() && client.Is4() == is4 {
		all = append(all, addrIs(is4, false, client.AsSlice())...)
	}
	all = append(all, b.protocol()...)
	if b.order.Tag == 0 && b.order.Port != 0 {
		all = append(all, field(expr.PayloadBaseTransportHeader, 0, []byte{0xff, 0xff}, binary.BigEndian.AppendUint16(nil, b.order.Port))...)
	}
	return append(all,
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
		&expr.Lookup{SourceRegister: 1, SetName: "ports"})
}

// relayed returns the conditions for a relay's packets to an endpoint.
func (b *builder) relayed(is4 bool, addr []byte, port uint16) []expr.Any {
	all := append(b.family(is4), addrIs(is4, true, addr)...)
	all = append(all, b.protocol()...)
	return append(all, field(expr.PayloadBaseTransportHeader, 2, []byte{0xff, 0xff}, binary.BigEndian.AppendUint16(nil, port))...)
}

func (b *builder) family(is4 bool) []expr.Any {
	family := byte(unix.NFPROTO_IPV6)
	if is4 {
		family = unix.NFPROTO_IPV4
	}
	return []expr.Any{&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: 1}, equal(family)}
}

// protocol returns the conditions for the order's protocol. Of TCP only the first packet is traced.
func (b *builder) protocol() []expr.Any {
	all := []expr.Any{&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1}, equal(b.order.Proto)}
	if b.order.Proto == tcp {
		const fin, syn, rst, ack = 1, 2, 4, 16
		all = append(all, field(expr.PayloadBaseTransportHeader, 13, []byte{fin | syn | rst | ack}, []byte{syn})...)
	}
	return all
}

// remember returns what puts the source port into the set.
func (b *builder) remember(seen *nftables.Set) []expr.Any {
	return []expr.Any{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 0, Len: 2},
		&expr.Dynset{SrcRegKey: 1, SetName: seen.Name, SetID: seen.ID, Operation: unix.NFT_DYNSET_OP_ADD},
	}
}

// reply returns the conditions for packets of the reply direction: the answer, and ICMP errors about the probe.
func (b *builder) reply(seen *nftables.Set) []expr.Any {
	return []expr.Any{
		&expr.Ct{Key: expr.CtKeyDIRECTION, Register: 1}, equal(1),
		&expr.Ct{Key: expr.CtKeyPROTOCOL, Register: 1, Direction: 0}, equal(b.order.Proto),
		&expr.Ct{Key: expr.CtKeyPROTOSRC, Register: 1, Direction: 0},
		&expr.Lookup{SourceRegister: 1, SetName: seen.Name, SetID: seen.ID},
	}
}

// answer returns the conditions for the answer itself. Of TCP that is the SYN-ACK or a reset.
func (b *builder) answer() []expr.Any {
	all := []expr.Any{&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1}, equal(b.order.Proto)}
	if b.order.Proto == tcp {
		const syn, rst = 2, 4
		all = append(all,
			&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 13, Len: 1},
			&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 1, Mask: []byte{syn | rst}, Xor: []byte{0}},
			notEqual(0))
	}
	return all
}

func notEqual(data ...byte) expr.Any {
	return &expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: data}
}

func equal(data ...byte) expr.Any { return &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: data} }

// field returns the condition that the bits of mask at an offset have a value.
func field(base expr.PayloadBase, offset uint32, mask, value []byte) []expr.Any {
	n := uint32(len(mask))
	return []expr.Any{
		&expr.Payload{DestRegister: 1, Base: base, Offset: offset, Len: n},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: n, Mask: mask, Xor: make([]byte, n)},
		equal(value...),
	}
}

func addrIs(is4, destination bool, addr []byte) []expr.Any {
	offset := uint32(8)
	if is4 {
		offset = 12
	}
	if destination {
		offset += uint32(len(addr))
	}
	return []expr.Any{&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: uint32(len(addr))}, equal(addr...)}
}
