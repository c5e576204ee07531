package observe

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/ringbuf"
	"golang.org/x/sys/unix"

	"github.com/fairway-net/fairway/internal/path/trace"
)

// drops hears from the kernel which packets it frees before their destination, in all network namespaces of the machine.
// The eBPF program keeps packets with the probe's protocol and one of its ports.
type drops struct {
	events  *ebpf.Map
	program *ebpf.Program
	link    link.Link
	reader  *ringbuf.Reader
	reasons map[uint32]string
}

// A dropped is a packet that the kernel freed.
type dropped struct {
	where  uint64 // the address in the kernel
	reason string
	inode  uint32 // of the network namespace; 0: not known
	link   uint32 // the index of the interface; 0: none
	packet trace.Packet
}

const (
	// dropEvents is the size of the ring for events.
	dropEvents = 256 << 10
	// The layout of an event: where (8 bytes), reason, inode, the interface's index, padding, and the begin of the packet.
	eventPacket = 24
	packetBytes = 64
	eventBytes  = eventPacket + packetBytes
)

var errMalformed = errors.New("malformed record")

// openDrops loads and attaches the program. The kernel removes both with the process.
func openDrops(o trace.Order) (d *drops, err error) {
	layout, err := kernelLayout()
	if err != nil {
		return nil, fmt.Errorf("read the kernel's types: %w [needs /sys/kernel/btf/vmlinux]", err)
	}
	d = &drops{reasons: layout.reasons}
	if err := d.open(o, layout); err != nil {
		d.close()
		if errors.Is(err, unix.EPERM) {
			err = unix.EPERM // the library's advice is for old kernels
		}
		return nil, fmt.Errorf("listen to dropped packets: %w [needs CAP_BPF and CAP_PERFMON]", err)
	}
	return d, nil
}

func (d *drops) open(o trace.Order, l layout) (err error) {
	if d.events, err = ebpf.NewMap(&ebpf.MapSpec{Name: "fairway_drops", Type: ebpf.RingBuf, MaxEntries: dropEvents}); err != nil {
		return err
	}
	d.program, err = ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "fairway_drops", Type: ebpf.RawTracepoint, License: "GPL", Instructions: dropProgram(l, d.events.FD(), o),
	})
	if err != nil {
		return err
	}
	if d.link, err = link.AttachRawTracepoint(link.RawTracepointOptions{Name: "kfree_skb", Program: d.program}); err != nil {
		return err
	}
	d.reader, err = ringbuf.NewReader(d.events)
	return err
}

// flush makes next return the events so far, and then an error.
func (d *drops) flush() { _ = d.reader.Flush() }

func (d *drops) close() {
	if d.reader != nil {
		_ = d.reader.Close()
	}
	if d.link != nil {
		_ = d.link.Close()
	}
	if d.program != nil {
		_ = d.program.Close()
	}
	if d.events != nil {
		_ = d.events.Close()
	}
}

// next waits for an event. errMalformed says that it must be ignored.
func (d *drops) next() (dropped, error) {
	r, err := d.reader.Read()
	if err != nil {
		return dropped{}, err
	}
	return d.decode(r.RawSample)
}

func (d *drops) decode(b []byte) (e dropped, err error) {
	if len(b) < eventBytes {
		return e, errMalformed
	}
	network := b[eventPacket:eventBytes]
	header := 20
	if network[0]>>4 == 6 {
		header = 40
	}
	var ok bool
	if e.packet, ok = trace.ParsePacket(network, network[header:]); !ok {
		return e, errMalformed
	}
	reason := binary.NativeEndian.Uint32(b[8:])
	if e.reason, ok = d.reasons[reason]; !ok {
		e.reason = fmt.Sprintf("reason %d", reason)
	}
	e.where, e.inode, e.link = binary.NativeEndian.Uint64(b), binary.NativeEndian.Uint32(b[12:]), binary.NativeEndian.Uint32(b[16:])
	return e, nil
}
