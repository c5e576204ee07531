package command

import (
	"context"
	"log/slog"

	"github.com/fairway-net/fairway/internal/kernel/nft"
	"github.com/fairway-net/fairway/internal/kernel/numbers"
)

// DatapathTables are the tables of nf_tables of all modes.
var DatapathTables = []string{numbers.TableNFTables, numbers.TableIPTables, numbers.TableIPVS, numbers.TableUserspace, numbers.TableEBPF}

// MonitorTables runs a Monitor until ctx ends. It returns nil, because the owners of tables work without a Monitor too:
// they find another program's change when they compare their table next.
func MonitorTables(ctx context.Context, log *slog.Logger, tables *nft.Monitor) error {
	if err := tables.Run(ctx); err != nil {
		log.Warn("other programs' changes of our tables are found late, within 30 s", "err", err)
	}
	return nil
}
