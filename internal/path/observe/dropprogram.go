package observe

import (
	"errors"
	"fmt"
	"strings"

	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"

	"github.com/fairway-net/fairway/internal/kernel/numbers"
	"github.com/fairway-net/fairway/internal/path/trace"
)

// A layout has the offsets of the kernel's fields, in bytes, and the names of the reasons.
type layout struct {
	head, networkHeader, dev, sk uint32 // of struct sk_buff
	devNet, index, skNet, inode  uint32 // of struct net_device, sock, net
	reasons                      map[uint32]string
}

// kernelLayout reads the offsets from the running kernel.
func kernelLayout() (l layout, err error) {
	spec, err := btf.LoadKernelSpec()
	if err != nil {
		return l, err
	}
	for _, f := range []struct {
		at   *uint32
		typ  string
		path string
	}{
		{&l.head, "sk_buff", "head"}, {&l.networkHeader, "sk_buff", "network_header"}, {&l.dev, "sk_buff", "dev"}, {&l.sk, "sk_buff", "sk"},
		{&l.devNet, "net_device", "nd_net.net"}, {&l.index, "net_device", "ifindex"}, {&l.skNet, "sock", "__sk_common.skc_net.net"}, {&l.inode, "net", "ns.inum"},
	} {
		var s *btf.Struct
		if err := spec.TypeByName(f.typ, &s); err != nil {
			return l, err
		}
		var ok bool
		if *f.at, ok = offset(s, strings.Split(f.path, ".")); !ok {
			return l, fmt.Errorf("struct %s has no %s", f.typ, f.path)
		}
	}
	var reasons *btf.Enum
	if err := spec.TypeByName("skb_drop_reason", &reasons); err != nil {
		return l, err
	}
	l.reasons = map[uint32]string{}
	for _, v := range reasons.Values {
		l.reasons[uint32(v.Value)] = strings.TrimPrefix(strings.TrimPrefix(v.Name, "SKB_DROP_REASON_"), "SKB_")
	}
	if len(l.reasons) == 0 {
		err = errors.New("the kernel names no drop reasons")
	}
	return l, err
}

// offset finds a member, also inside of members without a name.
func offset(t btf.Type, path []string) (at uint32, ok bool) {
	if len(path) == 0 {
		return 0, true
	}
	var members []btf.Member
	switch t := btf.UnderlyingType(t).(type) {
	case *btf.Struct:
		members = t.Members
	case *btf.Union:
		members = t.Members
	}
	for _, m := range members {
		rest := path
		if m.Name == path[0] {
			rest = path[1:]
		} else if m.Name != "" {
			continue
		}
		if inner, ok := offset(m.Type, rest); ok {
			return m.Offset.Bytes() + inner, true
		}
	}
	return 0, false
}

// The program's stack, as offsets from the frame pointer: the event, and two words for values on the way to it.
const (
	stackEvent   = -104
	stackPacket  = stackEvent + eventPacket
	stackHeader  = -12
	stackPointer = -8
)

// dropProgram returns the program for the tracepoint kfree_skb(skb, location, reason). It reads the packet's begin,
// compares protocol and ports, and sends an event.
func dropProgram(l layout, events int, o trace.Order) asm.Instructions {
	const skb = asm.R7
	load := func(to int16, size int32, base asm.Register, offset uint32) asm.Instructions {
		return asm.Instructions{
			asm.Mov.Reg(asm.R3, base), asm.Add.Imm(asm.R3, int32(offset)),
			asm.Mov.Reg(asm.R1, asm.R10), asm.Add.Imm(asm.R1, int32(to)), asm.Mov.Imm(asm.R2, size),
			asm.FnProbeReadKernel.Call(),
		}
	}
	var p asm.Instructions
	add := func(more ...asm.Instruction) { p = append(p, more...) }
	add(asm.Mov.Reg(asm.R6, asm.R1), asm.LoadMem(skb, asm.R6, 0, asm.DWord),
		asm.Mov.Imm(asm.R1, 0), asm.StoreMem(asm.R10, stackHeader, asm.R1, asm.Word), asm.StoreMem(asm.R10, stackPointer, asm.R1, asm.DWord))
	add(load(stackPointer, 8, skb, l.head)...)
	add(load(stackHeader, 2, skb, l.networkHeader)...)
	add(asm.LoadMem(asm.R8, asm.R10, stackPointer, asm.DWord), asm.LoadMem(asm.R1, asm.R10, stackHeader, asm.Half), asm.Add.Reg(asm.R8, asm.R1))
	add(load(stackPacket, packetBytes, asm.R8, 0)...)
	add(asm.JNE.Imm(asm.R0, 0, "out"))
	add(asm.LoadMem(asm.R1, asm.R10, stackPacket, asm.Byte), asm.RSh.Imm(asm.R1, 4), asm.JEq.Imm(asm.R1, 4, "ipv4"), asm.JNE.Imm(asm.R1, 6, "out"))
	add(match(o, 6, 40)...)
	ipv4 := match(o, 9, 20)
	ipv4[0] = ipv4[0].WithSymbol("ipv4")
	add(ipv4...)

	send := asm.LoadMem(asm.R1, asm.R6, 8, asm.DWord).WithSymbol("send")
	add(asm.Mov.Imm(asm.R1, 0).WithSymbol("found"), asm.StoreMem(asm.R10, stackEvent+8, asm.R1, asm.DWord),
		asm.StoreMem(asm.R10, stackEvent+16, asm.R1, asm.DWord), asm.StoreMem(asm.R10, stackPointer, asm.R1, asm.DWord))
	add(load(stackPointer, 8, skb, l.dev)...)
	add(asm.LoadMem(asm.R8, asm.R10, stackPointer, asm.DWord), asm.JEq.Imm(asm.R8, 0, "socket"))
	add(load(stackEvent+16, 4, asm.R8, l.index)...)
	add(load(stackPointer, 8, asm.R8, l.devNet)...)
	add(asm.Ja.Label("namespace"))
	socket := load(stackPointer, 8, skb, l.sk)
	socket[0] = socket[0].WithSymbol("socket")
	add(socket...)
	add(asm.LoadMem(asm.R8, asm.R10, stackPointer, asm.DWord), asm.JEq.Imm(asm.R8, 0, "send"))
	add(load(stackPointer, 8, asm.R8, l.skNet)...)
	add(asm.LoadMem(asm.R8, asm.R10, stackPointer, asm.DWord).WithSymbol("namespace"), asm.JEq.Imm(asm.R8, 0, "send"))
	add(load(stackEvent+12, 4, asm.R8, l.inode)...)
	add(send, asm.StoreMem(asm.R10, stackEvent, asm.R1, asm.DWord), asm.LoadMem(asm.R1, asm.R6, 16, asm.DWord), asm.StoreMem(asm.R10, stackEvent+8, asm.R1, asm.Word),
		asm.LoadMapPtr(asm.R1, events), asm.Mov.Reg(asm.R2, asm.R10), asm.Add.Imm(asm.R2, stackEvent), asm.Mov.Imm(asm.R3, eventBytes), asm.Mov.Imm(asm.R4, 0),
		asm.FnRingbufOutput.Call())
	add(asm.Mov.Imm(asm.R0, 0).WithSymbol("out"), asm.Return())
	return p
}

// match jumps to "found" if the packet has the protocol and one of the ports, and otherwise to "out". protocol and ports
// are offsets in the packet.
func match(o trace.Order, protocol, ports int16) asm.Instructions {
	p := asm.Instructions{asm.LoadMem(asm.R1, asm.R10, stackPacket+protocol, asm.Byte), asm.JNE.Imm(asm.R1, int32(o.Proto), "out")}
	for _, offset := range []int16{ports, ports + 2} {
		p = append(p, asm.LoadMem(asm.R1, asm.R10, stackPacket+offset, asm.Half))
		for _, port := range probePorts(o) {
			p = append(p, asm.JEq.Imm(asm.R1, int32(numbers.NetworkOrder(port)), "found"))
		}
	}
	return append(p, asm.Ja.Label("out"))
}
