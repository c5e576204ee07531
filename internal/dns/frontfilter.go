package dns

import (
	"fmt"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// The kernel gives each packet to one of the two sockets of a port: CoreDNS's is number 0, because it is the first, and
// the front's is number 1. The choice is a BPF program over the message, which needs no privilege. It returns 0, also by
// reading beyond the end of a message, unless the message is a plain question about a name in one of the zones.

// maxLabels limits the labels of names that the front gets. BPF programs of sockets have no loops.
const maxLabels = 16

// maxFilterZones limits the zones. More would make the program too long for its jumps.
const maxFilterZones = 4

// frontFilter returns the program for zones, which have no root labels.
func frontFilter(zones []*frontZone) ([]unix.SockFilter, error) {
	other := bpf.RetConstant{Val: 0}
	p := []bpf.Instruction{
		bpf.LoadAbsolute{Off: 2, Size: 2},
		bpf.JumpIf{Cond: bpf.JumpBitsNotSet, Val: 0xffff &^ (bitRD | bitAD | bitCD), SkipTrue: 1}, other,
		bpf.LoadAbsolute{Off: 4, Size: 4}, // questions and answers
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: 1 << 16, SkipTrue: 1}, other,
		bpf.LoadConstant{Dst: bpf.RegX, Val: headerSize},
	}
	const step = 7 // instructions for a label
	for i := range maxLabels {
		p = append(p,
			bpf.LoadIndirect{Off: 0, Size: 1},
			bpf.JumpIf{Cond: bpf.JumpEqual, Val: 0, SkipTrue: uint8((maxLabels-i)*step - 1)},
			bpf.JumpIf{Cond: bpf.JumpLessOrEqual, Val: 63, SkipTrue: 1}, other,
			bpf.ALUOpX{Op: bpf.ALUOpAdd},
			bpf.ALUOpConstant{Op: bpf.ALUOpAdd, Val: 1},
			bpf.TAX{},
		)
	}
	p = append(p, other, bpf.StoreScratch{Src: bpf.RegX, N: 0}) // the offset of the root label
	for _, z := range zones {
		p = append(p, z.comparison()...)
	}
	raw, err := bpf.Assemble(append(p, other))
	if err != nil {
		return nil, fmt.Errorf("make the filter of the zones: %w", err)
	}
	program := make([]unix.SockFilter, len(raw))
	for i, r := range raw {
		program[i] = unix.SockFilter{Code: r.Op, Jt: r.Jt, Jf: r.Jf, K: r.K}
	}
	return program, nil
}

// comparison returns 1 if the message's name ends with the zone, and continues behind itself if not.
func (z *frontZone) comparison() []bpf.Instruction {
	p := []bpf.Instruction{
		bpf.LoadScratch{Dst: bpf.RegA, N: 0},
		bpf.ALUOpConstant{Op: bpf.ALUOpSub, Val: uint32(len(z.wire))},
		bpf.TAX{},
	}
	// A difference skips the rest: two instructions for each further byte, and the last one.
	for i, c := range z.wire {
		p = append(p, bpf.LoadIndirect{Off: uint32(i), Size: 1}, bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: uint32(c), SkipTrue: uint8(2*(len(z.wire)-i-1) + 1)})
	}
	return append(p, bpf.RetConstant{Val: 1})
}
