# A server without a network: a line now and then, for `duly logs web -f`.
echo "up, and says $GREETING"
n=0
while sleep 5; do
    n=$((n + 1))
    echo "$GREETING, visitor $n"
done
