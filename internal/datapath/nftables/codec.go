package nftables

import (
	"encoding/binary"
	"fmt"
	"strconv"
	"strings"

	"github.com/fairway-net/fairway/internal/datapath/nftset"
	"github.com/fairway-net/fairway/internal/service"
)

// The kernel stores keys and data of elements like this: each field of a concatenation is in network byte order and
// padded to four bytes. Numbers that are not packet fields (slots, verdict IDs) are in host byte order.

// slotKey returns the key of an endpoint's element.
func slotKey(front []byte, slot uint32) []byte {
	return binary.NativeEndian.AppendUint32(append(make([]byte, 0, len(front)+4), front...), slot)
}

func verdictData(v verdictID) []byte { return nftset.Number(uint32(v)) }

// parseVerdict is the inverse of verdictData.
func parseVerdict(b []byte) (verdictID, error) {
	n, err := nftset.ParseNumber(b)
	return verdictID(n), err
}

// parseSlotKey is the inverse of slotKey.
func parseSlotKey(b []byte, is4, nodePort bool) (service.Key, uint32, error) {
	if len(b) < 4 {
		return service.Key{}, 0, fmt.Errorf("slot key has %d bytes", len(b))
	}
	k, err := nftset.ParseFrontendKey(b[:len(b)-4], is4, nodePort)
	return k, binary.NativeEndian.Uint32(b[len(b)-4:]), err
}

// loadBalancerWord is a word in the comment of the address of a load balancer.
const loadBalancerWord = "load-balancer"

// comment returns the comment of a frontend's element: the Service port, the algorithm unless it is random, and whether
// the address is that of a load balancer.
func (h *frontendState) comment() string {
	text := h.name
	if h.balance != service.Random {
		text += " " + h.balance.String()
	}
	if h.loadBalancer {
		text += " " + loadBalancerWord
	}
	return text
}

// parseComment is the inverse of frontendState.comment.
func (h *frontendState) parseComment(text string) (err error) {
	words := strings.Split(text, " ")
	h.name = words[0]
	for _, w := range words[1:] {
		if w == loadBalancerWord {
			h.loadBalancer = true
		} else if h.balance, err = service.ParseAlgorithm(w); err != nil {
			return err
		}
	}
	return nil
}

// weightComment returns the comment of an endpoint's element: the weight, or "" if the endpoint has none.
func weightComment(w uint16) string {
	if w == 0 {
		return ""
	}
	return "weight " + strconv.Itoa(int(w))
}

// parseWeight is the inverse of weightComment.
func parseWeight(text string) (uint16, error) {
	if text == "" {
		return 0, nil
	}
	w, err := strconv.ParseUint(strings.TrimPrefix(text, "weight "), 10, 16)
	return uint16(w), err
}
