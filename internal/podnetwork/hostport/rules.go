package hostport

import (
	"context"
	_ "embed"
	"encoding/binary"
	"fmt"
	"net/netip"
	"time"

	"github.com/fairway-net/fairway/internal/kernel/nft"
	"github.com/fairway-net/fairway/internal/kernel/numbers"
	"github.com/fairway-net/fairway/internal/service"
)

//go:embed rules.nft
var rulesText string

// rulesTimeout limits one pass over the rules.
const rulesTimeout = time.Minute

func rulesProgram() *nft.Ruleset {
	return &nft.Ruleset{Source: rulesText, Data: map[string]any{"Priority": numbers.HookHostPorts}}
}

// rules are the kernel's part of host ports on loopback addresses. The table exists while there are such ports.
type rules struct {
	*nft.Small[map[string]map[string]string]
}

func newRules() *rules {
	return &rules{nft.NewSmall[map[string]map[string]string](numbers.TableHostPorts)}
}

// sync makes the table lead the wanted ports to their pods.
func (r *rules) sync(ctx context.Context, want map[service.Key]netip.AddrPort) error {
	ctx, cancel := context.WithTimeout(ctx, rulesTimeout)
	defer cancel()
	all := map[string]map[string]string{"loopback4": {}, "loopback6": {}}
	for k, to := range want {
		set := "loopback6"
		if k.Addr.Addr().Is4() {
			set = "loopback4"
		}
		all[set][string(keyBytes(k))] = string(dataBytes(to))
	}
	err := r.Sync(ctx, rulesProgram(), all, len(want), func(ctx context.Context, t *nft.Table) ([]nft.Write, error) {
		return t.Differences(ctx, all, "loopback4", "loopback6")
	})
	if err != nil {
		return fmt.Errorf("write the rules for host ports on loopback addresses: %w", err)
	}
	return nil
}

// keyBytes encodes inet_proto . inet_service: each part fills 32 bits.
func keyBytes(k service.Key) []byte {
	return append(binary.BigEndian.AppendUint16([]byte{byte(k.Proto), 0, 0, 0}, k.Addr.Port()), 0, 0)
}

// dataBytes encodes address . inet_service.
func dataBytes(to netip.AddrPort) []byte {
	return append(binary.BigEndian.AppendUint16(to.Addr().AsSlice(), to.Port()), 0, 0)
}

// Cleanup removes the table, if it is there.
func Cleanup(ctx context.Context) error {
	if err := nft.New(numbers.TableHostPorts).Delete(ctx); err != nil {
		return fmt.Errorf("remove the rules for host ports: %w", err)
	}
	return nil
}
