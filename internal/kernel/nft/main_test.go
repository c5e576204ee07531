package nft

import (
	"os"
	"testing"

	"github.com/fairway-net/fairway/internal/testing/childfault"
	"github.com/fairway-net/fairway/internal/testing/testnet"
)

func TestMain(m *testing.M) {
	if os.Getenv(lockEnv) != "" {
		lockUntilKilled()
	}
	childfault.Main()
	testnet.Main(m)
}
