package observe

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/fairway-net/fairway/internal/kernel/netlink"
	"github.com/fairway-net/fairway/internal/kernel/nft"
	"github.com/fairway-net/fairway/internal/path/trace"
)

// The messages of nf_tables' traces (linux/netfilter/nf_tables.h).
const (
	traceGroup   = 9 // NFNLGRP_NFTRACE
	traceMessage = 10<<8 | 17

	traceTable     = 1
	traceChain     = 2
	traceHandle    = 3
	traceType      = 4
	traceVerdict   = 5
	traceID        = 6
	traceNetwork   = 8
	traceTransport = 9
	traceIn        = 10
	traceOut       = 12
	traceMark      = 14
	traceFamily    = 15
	tracePolicy    = 16
	traceFlow      = 18 // since Linux 6.16, like the next ones
	traceDirection = 19

	verdictCode  = 1
	verdictChain = 2
)

// A traced is one trace message.
type traced struct {
	id            uint32
	family        nft.Family // of the table
	table, chain  string
	kind          string
	handle        uint64
	verdict, to   string
	in, out       uint32 // interfaces
	mark          uint32
	network       []byte // the packet's headers, with the first message of each base chain only
	transport     []byte
	flow          uint32 // conntrack's id; 0: not known
	hasDirection  bool
	reply         bool
	protocolIsIP6 bool
}

// decodeTrace reads the body of a trace message. It keeps no reference to b.
func decodeTrace(b []byte) (m traced, err error) {
	const nfgenmsg = 4
	if len(b) < nfgenmsg {
		return m, fmt.Errorf("trace of %d bytes", len(b))
	}
	m.family = nft.Family(b[0])
	var policy string
	err = netlink.Attributes(b[nfgenmsg:], func(typ uint16, b []byte) error {
		switch typ {
		case traceTable:
			m.table = string(netlink.Text(b))
		case traceChain:
			m.chain = string(netlink.Text(b))
		case traceHandle:
			m.handle = be64(b)
		case traceType:
			m.kind = map[uint32]string{1: "policy", 2: "return", 3: "rule"}[be32(b)]
		case traceVerdict:
			return m.decodeVerdict(b)
		case traceID:
			m.id = be32(b)
		case traceNetwork:
			m.network = append([]byte(nil), b...)
		case traceTransport:
			m.transport = append([]byte(nil), b...)
		case traceIn:
			m.in = be32(b)
		case traceOut:
			m.out = be32(b)
		case traceMark:
			m.mark = be32(b)
		case traceFamily:
			m.protocolIsIP6 = be32(b) == uint32(nft.IPv6)
		case tracePolicy:
			policy = verdictName(int32(be32(b)))
		case traceFlow:
			m.flow = be32(b)
		case traceDirection:
			m.hasDirection, m.reply = len(b) == 1, len(b) == 1 && b[0] == 1
		}
		return nil
	})
	if m.kind == "policy" && policy != "" {
		m.verdict = policy
	}
	if err == nil && (m.table == "" || m.chain == "" || m.kind == "") {
		err = errors.New("trace without table, chain or type")
	}
	return m, err
}

func (m *traced) decodeVerdict(b []byte) error {
	return netlink.Attributes(b, func(typ uint16, b []byte) error {
		switch typ {
		case verdictCode:
			m.verdict = verdictName(int32(be32(b)))
		case verdictChain:
			m.to = string(netlink.Text(b))
		}
		return nil
	})
}

// verdictName returns nft's word for a verdict.
func verdictName(code int32) string {
	switch code {
	case -1:
		return "continue"
	case -2:
		return "break"
	case -3:
		return "jump"
	case -4:
		return "goto"
	case -5:
		return "return"
	}
	switch code & 0xff { // the other bits are an error or the number of a queue
	case 0:
		return "drop"
	case 1:
		return "accept"
	case 2:
		return "stolen"
	case 3:
		return "queue"
	case 4:
		return "repeat"
	}
	return fmt.Sprintf("verdict %d", code)
}

// packet reads the headers. ok is false if the message has none, or not enough of them.
func (m traced) packet() (p trace.Packet, ok bool) {
	p, ok = trace.ParsePacket(m.network, m.transport)
	p.Mark = m.mark
	return p, ok
}

const (
	tcp = 6
	udp = 17
)

func be32(b []byte) uint32 {
	if len(b) < 4 {
		return 0
	}
	return binary.BigEndian.Uint32(b)
}

func be64(b []byte) uint64 {
	if len(b) < 8 {
		return 0
	}
	return binary.BigEndian.Uint64(b)
}
