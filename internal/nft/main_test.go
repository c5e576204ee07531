package nft

import (
	"testing"

	"github.com/fairway-net/fairway/internal/childfault"
	"github.com/fairway-net/fairway/internal/testnet"
)

func TestMain(m *testing.M) {
	childfault.Main()
	testnet.Main(m)
}
