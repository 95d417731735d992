# A job that hangs, and does not end when it is asked to.
trap '' TERM
echo "waiting for something that never comes"
while :; do
    sleep 1
done
